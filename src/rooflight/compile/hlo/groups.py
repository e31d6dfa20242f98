"""Who talks to whom: the replica groups of a collective, and the mesh axes they run along.

XLA writes groups as lists, `{{0,1},{2,3}}`, as a reshaped and transposed count,
`[4,16]<=[16,4]T(1,0)`, or as axes of a mesh of its own,
`mesh['a'=16,'b'=4], device_ids=([16,4]T(1,0)) {'a'}`. Its ids are places in the device order of
the program, row-major in the jax mesh, so the axes of our mesh follow exactly.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=(?:@?\w*)?mesh\[([^\[\]]*)\]"
    r"(?:, ?device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\))? ?\{([^{}]*)\}"
)
_LISTS = re.compile(r"replica_groups=\{((?:\{[\d, ]*\},?)*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{[\d, ]*\},?)*)\}")
_GROUP = re.compile(r"\{([\d, ]+)\}")
_MESH_AXIS = re.compile(r"'([^']+)'=(\d{1,9})")
_CHOSEN = re.compile(r"'([^']+)'(?::\((\d{1,9})\)(\d{1,9}))?")
_MOST_DEVICES = 1 << 20  # far above any slice; a damaged count must not fill the memory


@dataclass(frozen=True, slots=True)
class MeshAxes:
    """The axes of the jax mesh in order, and the part of each that goes from slice to slice.

    The program of several slices is one for each: its ids are places in the mesh of one slice.
    """

    sizes: Mapping[str, int]
    dcn: Mapping[str, int]

    @property
    def inside(self) -> dict[str, int]:
        """The mesh of one slice."""
        return {name: size // self.dcn.get(name, 1) for name, size in self.sizes.items()}

    def of_groups(self, groups: Groups, *, devices: int, pairs: bool) -> "GroupAxes | None":
        """The axes of groups in a program of `devices` devices."""
        inside = self.inside
        if not self.dcn or math.prod(inside.values()) != devices:
            return axes_of(groups, self.sizes, pairs=pairs)
        found = axes_of(groups, inside, pairs=pairs)
        if found is None or all(inside[a] == self.sizes[a] for a in found.axes):
            return found
        return GroupAxes(found.axes, is_whole=False)


@dataclass(frozen=True, slots=True)
class GroupAxes:
    """The mesh axes along which the members of a group differ, and whether a group fills them."""

    axes: tuple[str, ...]
    is_whole: bool


def read_groups(attributes: str) -> Groups | None:
    """The groups of a collective, or the pairs of a permute; None if the text has none.

    >>> read_groups("replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}")
    ((0, 2), (1, 3))
    """
    if match := _IOTA.search(attributes):
        return _iota(match[1], match[2], match[3])
    if match := _MESH.search(attributes):
        return _mesh(match)
    match = _LISTS.search(attributes) or _PAIRS.search(attributes)
    return _lists(match[1]) if match else None


@lru_cache(maxsize=1024)
def _lists(text: str) -> Groups:
    """Many collectives of a large slice have the same long list."""
    return tuple(_numbers(group) for group in _GROUP.findall(text))


def pairs_of(attributes: str) -> bool:
    """Whether the groups are the pairs of a permute."""
    return "source_target_pairs=" in attributes


def _numbers(text: str) -> tuple[int, ...]:
    return tuple([int(n) for n in text.split(",") if n.strip() and len(n) < 10])


def _reordered(shape: Sequence[int], order: Sequence[int]) -> list[int] | None:
    """0, 1, 2 ... in `shape`, transposed to `order`, flat again."""
    order = order or tuple(range(len(shape)))
    if math.prod(shape) > _MOST_DEVICES or sorted(order) != list(range(len(shape))):
        return None
    strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    flat = [0]
    for at in order:
        flat = [base + i * strides[at] for base in flat for i in range(shape[at])]
    return flat


def _split(flat: Sequence[int], size: int) -> Groups | None:
    if size < 1 or len(flat) % size:
        return None
    return tuple(tuple(flat[at : at + size]) for at in range(0, len(flat), size))


def _iota(groups: str, shape: str, order: str | None) -> Groups | None:
    flat = _reordered(_numbers(shape), _numbers(order or ""))
    wanted = _numbers(groups)
    if flat is None or not wanted or math.prod(wanted) != len(flat):
        return None
    return _split(flat, wanted[-1])


def _mesh(match: re.Match[str]) -> Groups | None:
    """The devices that differ in the chosen axes, or parts of axes, alone."""
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(match[1])}
    shape = _numbers(match[2]) if match[2] else tuple(sizes.values())
    devices = _numbers(match[4]) if match[4] else _reordered(shape, _numbers(match[3] or ""))
    parts = _mesh_parts(sizes, _CHOSEN.findall(match[5]))
    if devices is None or parts is None or len(devices) != math.prod(sizes.values()):
        return None
    chosen = [at for at, (_, is_chosen) in enumerate(parts) if is_chosen]
    others = [at for at in range(len(parts)) if at not in chosen]
    flat = _reordered([size for size, _ in parts], (*others, *chosen))
    if flat is None:
        return None
    return _split([devices[at] for at in flat], math.prod(parts[at][0] for at in chosen))


def _mesh_parts(
    sizes: Mapping[str, int], chosen: Sequence[tuple[str, str, str]]
) -> list[tuple[int, bool]] | None:
    """Every axis, or its three parts where only the middle one is chosen: `'a':(2)4`."""
    parts: list[tuple[int, bool]] = []
    words = {name: (before, size) for name, before, size in chosen}
    if set(words) - set(sizes):
        return None
    for name, size in sizes.items():
        before, part = words.get(name, ("", ""))
        if not part:
            parts.append((size, name in words))
            continue
        outer, middle = int(before), int(part)
        if outer < 1 or middle < 1 or size % (outer * middle):
            return None
        parts += [(outer, False), (middle, True), (size // outer // middle, False)]
    return parts


def axes_of(groups: Groups, axes: Mapping[str, int], *, pairs: bool = False) -> GroupAxes | None:
    """The mesh axes of groups; None if their ids are not places in this mesh.

    >>> axes_of(((0, 2), (1, 3)), {"X": 2, "Y": 2})
    GroupAxes(axes=('X',), is_whole=True)
    """
    return _axes_of(groups, tuple(axes.items()), pairs)


@lru_cache(maxsize=4096)
def _axes_of(groups: Groups, axes: tuple[tuple[str, int], ...], pairs: bool) -> GroupAxes | None:
    places = math.prod(size for _, size in axes)
    if any(not 0 <= member < places for group in groups for member in group):
        return None
    differs = [False] * len(axes)
    for group in groups:
        for member in group[1:]:
            _mark(differs, group[0], member, axes)
    chosen = [axis for axis, differ in zip(axes, differs, strict=True) if differ]
    full = math.prod(size for _, size in chosen)
    whole = pairs or all(len(group) == full for group in groups)
    return GroupAxes(tuple(name for name, _ in chosen), whole)


def _mark(differs: list[bool], one: int, other: int, axes: tuple[tuple[str, int], ...]) -> None:
    """Notes the axes in which two places differ, innermost axis first."""
    for at in range(len(axes) - 1, -1, -1):
        one, i = divmod(one, axes[at][1])
        other, j = divmod(other, axes[at][1])
        if i != j:
            differs[at] = True
