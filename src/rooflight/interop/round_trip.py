"""Whether settings come back as the plan they were written from.

In: a plan, and what its settings say when they are read. Out: what differs. Behind a switch every
chip is as near as any other, so of an axis only how much of each tier it takes is compared.

The sizes of a plain decoder, the part of a model that every framework takes as numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.interop.framework import Loss
from rooflight.interop.imported import Imported, straddles
from rooflight.interop.roles import OUTER, read_roles
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Rope
from rooflight.plan.file.record import Plan

_PRE_NORMS = ("attention_in", "mlp_in")

_PARTS = (
    *("batch", "seq", "dtype", "remat", "stages", "schedule", "microbatches", "virtual"),
    *("recipe",),
)
_KINDS = {"tp": "sp", "mp": "sp", "ulysses": "cp", "ep": ""}
_ALONG = {"tp": "sp"}  # the stream along D, which only MaxText has: a loss of its own

Spread = Mapping[frozenset[str], Mapping[str, int]]  # schemes, then ways on each physical dim


def spread(
    layout: str, mesh: Mesh, *, kinds: Mapping[str, str] | None = None, is_placed: bool = True
) -> Spread:
    """How the axes that do the same lie; a part of `kinds` stands for its value.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> spread("fsdp=X,sp=Y", parse_mesh("X=4,Y=4", on="h100:8x2"))[frozenset({"fsdp"})]
    {'leaf': 2, 'node': 2}
    """
    names = kinds or {}
    found: dict[frozenset[str], dict[str, int]] = {}
    for axis, schemes in read_roles(layout, mesh).schemes.items():
        sizes = found.setdefault(frozenset(names.get(s, s) for s in schemes), {})
        for part in mesh.segments[axis]:
            dim = part.dim if is_placed or part.dim in OUTER else "inside"
            sizes[dim] = sizes.get(dim, 1) * part.size
    return found


def changed_parts(plan: Plan, found: Imported) -> list[Loss]:
    """Every part but the layout that comes back as something else."""
    pairs = [(name, getattr(plan, name), getattr(found, name)) for name in _PARTS]
    return [
        Loss(f"{name} {ours}", f"becomes {theirs}")
        for name, ours, theirs in pairs
        if ours != theirs
    ]


def changed_layout(plan: Plan, found: Imported, *, is_placed: bool = True) -> list[Loss]:
    """The layout, if its axes would do something else or lie elsewhere."""
    sides = ((plan.layout, plan.placed()), (found.layout, found.mesh))
    ours, theirs = (spread(*side, kinds=_ALONG, is_placed=is_placed) for side in sides)
    if ours == theirs and not (is_placed and straddles(found.mesh)):
        return []
    what = f"{plan.layout} on mesh {plan.mesh}"
    return [Loss(what, f"becomes {found.layout} on mesh {found.mesh}{_cut(found)}")]


def moved_ranks(plan: Plan, found: Imported, *, is_placed: bool = True) -> list[Loss]:
    """The same, where what an axis does is told elsewhere: only how many ways lie where."""
    kinds = _KINDS if is_placed else _KINDS | {"fsdp": "dp"}  # MaxText's expert axis is both
    sides = ((plan.layout, plan.placed()), (found.layout, found.mesh))
    ours, theirs = (_merged(spread(*s, kinds=kinds, is_placed=is_placed)) for s in sides)
    if ours == theirs and not (is_placed and straddles(found.mesh)):
        return []
    because = f"axes nest in one order there, which makes it {found.mesh}{_cut(found)}"
    return [Loss(f"mesh {plan.mesh}", because)]


def _cut(found: Imported) -> str:
    return ", if nodes did not cut its groups" if straddles(found.mesh) else ""


def _merged(found: Spread) -> dict[frozenset[str], dict[str, int]]:
    """Axes that differ in their experts only, as one."""
    result: dict[frozenset[str], dict[str, int]] = {}
    for schemes, sizes in found.items():
        into = result.setdefault(schemes - {""}, {})
        for dim, size in sizes.items():
            into[dim] = into.get(dim, 1) * size
    return result


def unstated(
    plan: Plan, read: Callable[[], Imported], stated: Sequence[Loss], *, is_placed: bool = True
) -> list[Loss]:
    """What comes back as something else and no loss has said so far."""
    told = {loss.what.split()[0] for loss in stated if loss.is_material}
    try:
        found = read()
    except UsageError as error:
        return [Loss("these settings", f"are refused when they are read: {error}")]
    moved = moved_ranks(plan, found, is_placed=is_placed)
    if not any("=" in what or what == "mesh" for what in told):
        moved = moved or changed_layout(plan, found, is_placed=is_placed)
    return [x for x in changed_parts(plan, found) if x.what.split()[0] not in told] + moved


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """One kind of attention, leading dense layers if experts follow, one width each."""

    attention: Attention
    mlp: Mlp | None  # of dense layers
    moe: Moe | None
    num_dense: int  # leading; all of them without experts
    num_layers: int


def plain_sizes(model: ModelSpec, *, positions: int = 0) -> tuple[ModelSizes, list[Loss]]:
    """The sizes of a model as if it were plain, and each thing that is then left out.

    `positions` are the rows of a table of learned positions that can be written.
    """
    blocks = model.layer_blocks
    first, last = blocks[0], blocks[-1]
    num_dense = next((i for i, b in enumerate(blocks) if isinstance(b.mlp, Moe)), len(blocks))
    sizes = ModelSizes(
        last.attention,
        first.mlp if isinstance(first.mlp, Mlp) else None,
        last.mlp if isinstance(last.mlp, Moe) else None,
        num_dense,
        model.num_layers,
    )
    return sizes, _left_out(model, blocks, sizes, positions)


def _left_out(
    model: ModelSpec, blocks: tuple[Block, ...], sizes: ModelSizes, positions: int
) -> list[Loss]:
    attentions = {block.attention for block in blocks}
    leading = all(isinstance(b.mlp, Moe) == (i >= sizes.num_dense) for i, b in enumerate(blocks))
    odd = {
        "layers that differ in their attention": len(attentions) > 1,
        "dense and expert layers that alternate": not leading,
        "widths that differ from layer to layer": len({block.mlp for block in blocks}) > 2,
        "attention windows": any(a.window for a in attentions),
        "attention sinks": any(a.has_sinks for a in attentions),
        "keys and values of an earlier layer": any(a.shares_kv for a in attentions),
        "attention and MLP side by side": any(block.is_parallel for block in blocks),
        "norms after a sublayer": any(tuple(block.norms) != _PRE_NORMS for block in blocks),
        "a bias of the output head": model.head_bias,
        f"{model.num_positions} learned positions": model.num_positions not in (0, positions),
    }
    return [Loss(f"model {model.name}", f"{what} are not written") for what in odd if odd[what]]


def has_numbers(model: ModelSpec) -> bool:
    """Whether bases of rotary positions and the like were read: presets and imports are sizes."""
    read = model.source is not None and model.source.key == "config"
    return read or any(block.attention.rope != Rope() for block in model.blocks)
