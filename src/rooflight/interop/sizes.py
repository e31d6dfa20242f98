"""The sizes of a plain decoder, the part of a model that every framework takes as numbers.

In: a `ModelSpec`. Out: `ModelSizes`, if all its layers are alike or dense ones lead, and what of
the model such numbers do not say.
"""

from dataclasses import dataclass

from rooflight.interop.framework import Loss
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Rope

_PRE_NORMS = ("attention_in", "mlp_in")


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
