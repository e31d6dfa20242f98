"""`Framework`: what a training framework holds beyond the closed form, as its own code shows.

The default, `none`, is the closed form of the book: every tensor once, no copies. The others are
conventions to opt into, read in the frameworks' code; what was chosen to fit published runs instead
says so (`docs/memory.md` has the runs and the errors).
"""

from dataclasses import dataclass

from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UnknownNameError

_BF16, _F32 = DTYPES["bf16"], DTYPES["f32"]


@dataclass(frozen=True, slots=True)
class Framework:
    """Copies that a framework makes, and when it lets go of what it gathered."""

    name: str
    help: str
    loss: tuple[Dtype, ...] = (_F32, _BF16)  # arrays of the size of the logits, together
    split_loss: tuple[Dtype, ...] = ()  # the same where the vocabulary is split, if they differ
    keeps_gathered: bool = False  # a product's input is kept as gathered, not as the layout has it
    keeps_activation: bool = False  # silu(gate) is kept beside gate, up and their product
    copies_gradients: bool = False  # data parallel: in the compute dtype beside the recipe's
    unread_gradients: bool = False  # one gradient of each shape that nobody reads stays allocated
    gathers_blocks: bool = False  # weights are gathered a whole layer at a time, one layer ahead
    keeps_weights: bool = False  # a pipeline stage gathers once a step and scatters at its end
    scans_layers: bool = False  # one loop over layers, whose gradients are there until its end
    loss_tokens: int | None = None  # of a chip, whose logits are there at once; None is all
    lanes: int = 1  # on TPUs keys, values and what they add up to have heads of whole lanes
    splits_dims: bool = False  # ZeRO splits the first dim that divides, else the flat array
    cuts_by_flops: bool = False  # the head counts as layers where the stages are cut
    reserved: float = 0.0  # what the allocator holds beyond what is allocated, as a part of it


FRAMEWORKS = {
    f.name: f
    for f in (
        Framework("none", "the closed form: each tensor once"),
        Framework(
            "rooflight",
            "Rooflight's own program: a scan over layers, logits in chunks",
            scans_layers=True,
            loss_tokens=2048,
            lanes=128,  # the compiler's tiles: heads of 64 are kept as 128, half of it padding
            splits_dims=True,
        ),
        Framework(
            "megatron",
            "Megatron-LM with Transformer Engine and fused cross-entropy",
            loss=(_BF16, _BF16),  # the second one by the runs: the kernel itself works in place
            unread_gradients=True,
        ),
        Framework(
            "nanotron",
            "Nanotron: unfused silu, whole inputs kept, gradients in bf16 and fp32",
            loss=(_BF16, _F32, _F32),
            keeps_gathered=True,  # by the runs: an option whose setting was not published
            keeps_activation=True,
            copies_gradients=True,
            cuts_by_flops=True,
        ),
        Framework(
            "torchtitan",
            "torchtitan: FSDP by layers, cross-entropy that is not fused",
            loss=(_BF16, _F32, _F32, _F32),
            split_loss=(_BF16, _F32, _F32, _F32, _F32),
            gathers_blocks=True,
            keeps_weights=True,
            reserved=0.07,  # by the runs: what is published is reserved memory
        ),
    )
}


def parse_framework(text: str) -> Framework:
    """Finds a framework by name; unknown names get a did-you-mean."""
    if text not in FRAMEWORKS:
        raise UnknownNameError("framework", text, FRAMEWORKS)
    return FRAMEWORKS[text]
