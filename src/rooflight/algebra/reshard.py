"""From one sharding of a tensor to another with the fewest bytes.

A shortest-path search over shardings. The moves are the collectives of `steps`; the length of a
move is the bytes one device sends, as a fraction of the whole tensor, so it depends on the axis
sizes only. Without sizes every axis counts as `NOMINAL`: the path then holds for the *pattern*,
and can be priced for any sizes later.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.shapes import ways
from rooflight.algebra.steps import Op, Step
from rooflight.errors import ShardingError

NOMINAL = 4  # ways of an axis whose size is not given
_STEP = 1e-9  # a tie is won by fewer steps

State = tuple[tuple[Axes, ...], Axes]  # axes of each dim; unreduced axes


class _Edge(NamedTuple):
    """One edge of the search: what is done, where it leads, what it sends."""

    op: Op
    axes: Axes
    dim: int
    to_dim: int
    state: State
    sent: float


def reshard(
    source: Tensor, target: Tensor, axis_sizes: Mapping[str, int] | None = None
) -> tuple[Step, ...]:
    """The steps that bring `source` into the sharding of `target` with the fewest bytes.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> [s.op for s in reshard(parse_tensor("A[I_X,J]"), parse_tensor("A[I,J_X]"))]
    ['all_to_all']
    >>> [s.op for s in reshard(parse_tensor("A[I,J]{U_XY}"), parse_tensor("A[I_X,J]"))]
    ['reduce_scatter', 'all_reduce']
    """
    if source.dims != target.dims:
        raise ShardingError(
            f"cannot reshard {source} to {target}: the dims differ",
            hint=f"write the target with dims {','.join(source.dims)}",
        )
    missing = sorted(set(target.unreduced) - set(source.unreduced))
    if missing:
        raise ShardingError(
            f"cannot reshard {source} to {target}: nothing is pending over {', '.join(missing)}",
            hint="only a contraction makes an unreduced tensor",
        )
    involved = dict.fromkeys(source.mesh_axes + target.mesh_axes)
    sizes = tuple((a, NOMINAL if axis_sizes is None else ways((a,), axis_sizes)) for a in involved)
    start, goal = (source.axes, source.unreduced), (target.axes, target.unreduced)
    return _as_steps(source, _shortest(start, goal, sizes, exact=axis_sizes is not None))


@lru_cache(maxsize=65536)
def _shortest(
    start: State, goal: State, sizes: tuple[tuple[str, int], ...], exact: bool
) -> tuple[_Edge, ...]:
    """`_search` with axes named by their place: patterns with other axes have the same paths."""
    names = [axis for axis, _ in sizes]
    placed = {axis: chr(ord("a") + i) for i, axis in enumerate(names)}
    moves = _search(
        _renamed(start, placed),
        _renamed(goal, placed),
        tuple((placed[axis], shards) for axis, shards in sizes),
        exact,
    )
    back = {place: axis for axis, place in placed.items()}
    return tuple(
        move._replace(
            axes=_order(move.op, _rename(move.axes, back)), state=_renamed(move.state, back)
        )
        for move in moves
    )


def _order(op: Op, axes: Axes) -> Axes:
    """Where the order of a group's axes means nothing, they are in order of name."""
    return tuple(sorted(axes)) if op in ("all_reduce", "permute") else axes


def _renamed(state: State, names: Mapping[str, str]) -> State:
    return tuple(_rename(axes, names) for axes in state[0]), _rename(state[1], names)


def _rename(axes: Axes, names: Mapping[str, str]) -> Axes:
    return tuple(names[axis] for axis in axes)


def _as_steps(tensor: Tensor, moves: tuple[_Edge, ...]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for move in moves:
        after = Tensor(tensor.name, tensor.dims, *move.state)
        dim = tensor.dims[move.dim] if move.dim >= 0 else ""
        to_dim = tensor.dims[move.to_dim] if move.to_dim >= 0 else ""
        steps.append(Step(move.op, (tensor,), after, move.axes, dim, to_dim))
        tensor = after
    return tuple(steps)


@lru_cache(maxsize=65536)
def _search(
    start: State, goal: State, sizes: tuple[tuple[str, int], ...], exact: bool
) -> tuple[_Edge, ...]:
    """A*, by what a device must still send."""
    shards, wanted = dict(sizes), [axis for axes in goal[0] for axis in axes]
    best: dict[State, float] = {start: 0.0}
    came: dict[State, tuple[State, _Edge]] = {}
    queue: list[tuple[float, int, float, State]] = [(0.0, 0, 0.0, start)]
    pushed = 0
    while queue:
        _, _, length, state = heapq.heappop(queue)
        if state == goal:
            return _trace(start, goal, came)
        if length > best[state]:
            continue
        for move in _moves(state, goal, shards, exact):
            reached = length + move.sent + _STEP
            if reached < best.get(move.state, float("inf")):
                best[move.state] = reached
                came[move.state] = (state, move)
                pushed += 1
                ahead = _least_sent(move.state, goal, wanted, shards)
                heapq.heappush(queue, (reached + ahead, pushed, reached, move.state))
    raise AssertionError(f"every sharding is reachable: {start} -> {goal}")


def _least_sent(state: State, goal: State, wanted: Sequence[str], sizes: dict[str, int]) -> float:
    """What a device must still send, its block sliced already as the goal has it.

    Sums that pend are scattered; what is then lacking of the goal's block is gathered; and an axis
    of the goal that lies elsewhere has to move.
    """
    dims, unreduced = state
    held = sum(dims, unreduced)
    block = _local((*dims, tuple([axis for axis in wanted if axis not in held])), sizes)
    last = block / _product(tuple([axis for axis in unreduced if axis not in goal[1]]), sizes)
    sent = block - last + max(0.0, 1 / _product(wanted, sizes) - last)
    for axes, there in zip(dims, goal[0], strict=True):
        if axes and not set(wanted).isdisjoint(axes[right_prefix(axes, there) :]):
            return sent + last * (1 - 1 / min(sizes.values()))
    return sent


def _trace(start: State, goal: State, came: dict[State, tuple[State, _Edge]]) -> tuple[_Edge, ...]:
    moves: list[_Edge] = []
    while goal != start:
        goal, move = came[goal]
        moves.append(move)
    return tuple(reversed(moves))


class _Here(NamedTuple):
    """A state of the search, and what its moves depend on."""

    dims: tuple[Axes, ...]
    unreduced: Axes
    goal: State
    right: list[int]  # outer axes of each dim that are as wanted
    sizes: dict[str, int]
    local: float


def _moves(state: State, goal: State, sizes: dict[str, int], exact: bool) -> Iterator[_Edge]:
    dims, unreduced = state
    right = [right_prefix(axes, wanted) for axes, wanted in zip(dims, goal[0], strict=True)]
    here = _Here(dims, unreduced, goal, right, sizes, _local(dims, sizes))
    yield from _gathers(here)
    yield from _exchanges(here)
    yield from _slices(here)
    yield from _reductions(here)
    yield from _permutes(here)
    if exact and unreduced == goal[1]:
        yield from _swaps(here)


def right_prefix(axes: Axes, wanted: Axes) -> int:
    """How many outer axes of a dim are already as wanted; no shortest path disturbs those."""
    count = 0
    for axis, other in zip(axes, wanted, strict=False):
        if axis != other:
            break
        count += 1
    return count


def _local(dims: tuple[Axes, ...], sizes: dict[str, int]) -> float:
    """The part of the tensor that one device holds."""
    ways = 1
    for axes in dims:
        ways *= _product(axes, sizes)
    return 1 / ways


def _product(axes: Sequence[str], sizes: dict[str, int]) -> int:
    result = 1
    for axis in axes:
        result *= sizes[axis]
    return result


def _put(dims: tuple[Axes, ...], at: int, axes: Axes) -> tuple[Axes, ...]:
    return (*dims[:at], axes, *dims[at + 1 :])


def _gathers(here: _Here) -> Iterator[_Edge]:
    """Only the innermost axes of a dim can be gathered: the result must be one block."""
    for at, axes in enumerate(here.dims):
        for keep in range(here.right[at], len(axes)):
            gone = axes[keep:]
            sent = here.local * (_product(gone, here.sizes) - 1)
            state = (_put(here.dims, at, axes[:keep]), here.unreduced)
            yield _Edge("all_gather", gone, at, -1, state, sent)


def _exchanges(here: _Here) -> Iterator[_Edge]:
    dims = here.dims
    for at, axes in enumerate(dims):
        for keep in range(here.right[at], len(axes)):
            moved = axes[keep:]
            shards = _product(moved, here.sizes)
            for to in range(len(dims)):
                if to != at:
                    after = _put(_put(dims, at, axes[:keep]), to, dims[to] + moved)
                    sent = here.local * (shards - 1) / shards
                    yield _Edge("all_to_all", moved, at, to, (after, here.unreduced), sent)


def _slices(here: _Here) -> Iterator[_Edge]:
    """A replicated axis that the goal splits over may be sliced in, free of traffic.

    On any dim: it may have to travel with another axis to where the goal has both.
    """
    used = {a for axes in here.dims for a in axes} | set(here.unreduced)
    free = [a for axes in here.goal[0] for a in axes if a not in used]
    for to, axes in enumerate(here.dims):
        for added in _sequences(free):
            state = (_put(here.dims, to, axes + added), here.unreduced)
            yield _Edge("slice", added, -1, to, state, 0.0)


def _sequences(axes: list[str]) -> Iterator[Axes]:
    """Every non-empty ordered choice."""
    for count in range(1, len(axes) + 1):
        yield from permutations(axes, count)


def _reductions(here: _Here) -> Iterator[_Edge]:
    dims = here.dims
    pending = [a for a in here.unreduced if a not in here.goal[1]]
    for chosen in _sequences(pending):
        shards = _product(chosen, here.sizes)
        rest = tuple(a for a in here.unreduced if a not in chosen)
        sent = here.local * (shards - 1) / shards
        if chosen == tuple(sorted(chosen)):
            yield _Edge("all_reduce", chosen, -1, -1, (dims, rest), 2 * sent)
        for to, axes in enumerate(dims):
            state = (_put(dims, to, axes + chosen), rest)
            yield _Edge("reduce_scatter", chosen, -1, to, state, sent)


def _permutes(here: _Here) -> Iterator[_Edge]:
    """The axes of one dim may change their order: the blocks stay the same and change places."""
    for at, axes in enumerate(here.dims):
        kept, loose = axes[: here.right[at]], axes[here.right[at] :]
        for order in permutations(loose):
            if order != loose:
                state = (_put(here.dims, at, kept + order), here.unreduced)
                yield _Edge("permute", tuple(sorted(loose)), at, -1, state, here.local)


def _swaps(here: _Here) -> Iterator[_Edge]:
    """With known sizes, one permute reaches any goal with as many blocks along every dim."""
    goal, sizes = here.goal, here.sizes
    pairs = list(zip(here.dims, goal[0], strict=True))
    if here.dims != goal[0] and all(_product(a, sizes) == _product(b, sizes) for a, b in pairs):
        axes = sorted({a for before, after in pairs if before != after for a in before + after})
        yield _Edge("permute", tuple(axes), -1, -1, goal, here.local)
