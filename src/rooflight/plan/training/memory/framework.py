"""`Framework`: what a training framework holds beyond the closed form, as its own code shows.

The default, `none`, is the closed form of the book: every tensor once, no copies. The others are
conventions to opt into, read in the frameworks' code; what was chosen to fit published runs instead
says so (`docs/memory.md` has the runs and the errors).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from statistics import NormalDist

from rooflight.algebra.notation import Tensor
from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UnknownNameError
from rooflight.hardware.chip import Chip

_HOPPER = 9.0  # compute capability from which workspaces of matmuls are large
_LARGE, _DEFAULT, _SMALL = 32 * 2**20, 4096 * 2**11 + 16 * 2**13, 4 * 2**20  # :4096:2:16:8
_BF16, _F32, _BOOL = DTYPES["bf16"], DTYPES["f32"], DTYPES["bool"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Logs of measured over counted bytes: nearly normal, wider where runs are few."""

    mean: float
    sigma: float
    num_runs: int

    def chance(self, counted: int, room: int) -> float:
        """That what is counted so takes no more than the room."""
        return NormalDist(self.mean, self.sigma).cdf(log(room / counted))

    def between(self, counted: int) -> tuple[int, int]:
        """Nine of ten runs take more than the first and less than the second."""
        of = NormalDist(self.mean, self.sigma)
        return int(counted * exp(of.inv_cdf(0.05))), int(counted * exp(of.inv_cdf(0.95)))


@dataclass(frozen=True, slots=True)
class Framework:
    """Copies that a framework makes, and when it lets go of what it gathered."""

    name: str
    help: str
    loss: tuple[Dtype, ...] = (_F32, _BF16)  # arrays of the size of the logits, together
    split_loss: tuple[Dtype, ...] = ()  # the same where the vocabulary is split, if they differ
    keeps_gathered: bool = False  # a matmul's input is saved as gathered, not as the layout has it
    keeps_activation: bool = False  # silu(gate) is saved beside gate, up and their product
    copies_gradients: bool = False  # data parallel: in the compute dtype beside the recipe's
    weighs_hidden: bool = False  # experts are weighed before their last matmul, not after it
    inputs: Dtype | None = None  # of weight matmuls, saved so; None is the compute dtype
    masks: tuple[Dtype, ...] = ()  # saved of each element that dropout goes over
    scores: tuple[Dtype, ...] = ()  # saved of each score, where attention is no kernel
    uses_te: bool = False  # PyTorch's and Transformer Engine's workspaces of matmuls
    deterministic: bool = False  # cuBLAS with CUBLAS_WORKSPACE_CONFIG=:4096:8
    groups_experts: bool = True  # experts in one grouped matmul on four streams
    overlaps_tensors: bool = False  # matmuls in pieces on three streams, between collectives
    unread_gradients: bool = False  # one gradient of each shape that nobody reads stays allocated
    gathers_blocks: bool = False  # weights are gathered a whole layer at a time, one layer ahead
    keeps_weights: bool = False  # a pipeline stage gathers once a step and scatters at its end
    scans_layers: bool = False  # one loop over layers, whose gradients are there until its end
    loss_tokens: int | None = None  # of a chip, whose logits are there at once; None is all
    lanes: int = 1  # on TPUs keys, values and what they add up to have heads of whole lanes
    splits_dims: bool = False  # ZeRO splits the first dim that divides, else the flat array
    cuts_by_flops: bool = False  # the head counts as layers where the stages are cut
    reserved: float = 0.0  # what the allocator holds beyond what is allocated, as a part of it
    recipe: str = "10"  # what it stores of a parameter unless it is told
    in_step: bool = False  # the stages of a pipeline run in lock step and run their layers again
    data: tuple[str, ...] = ("fsdp=X", "dp=Z", "dp=Z,fsdp=X")  # how it may split sequences
    model: tuple[str, ...] = ("", "sp=Y", "cp=Y", "cp=W,sp=Y")  # and the rest of a layer
    modes: tuple[tuple[str, str], ...] = ()  # in which its schemes may talk, beside the plain one
    splits_queries: bool = False  # tensor parallelism beyond one kv head, which every chip has
    plain_fsdp: bool = False  # fsdp goes with tensor parallelism at most
    folds_experts: bool = False  # over any product of the data, context and tensor axes
    max_virtual: int = 1  # chunks of layers a stage may hold; 1 is no interleaving
    whole_turns: bool = False  # interleaved only where the stages divide the microbatches
    counted_ends: int = 0  # embedding and head may each stand for a layer where layers are cut
    remats: tuple[str, ...] = ("none", "dots", "block")  # policies, or tensors joined by +
    spread: Spread | None = None  # of its measured runs, as `tests/plan` replays them
    settings: tuple[str, ...] = ()  # of `SETTINGS`, that it runs with

    @property
    def label(self) -> str:
        return "+".join((self.name, *self.settings))

    def beside(self, name: str) -> tuple[Dtype, ...]:
        """What is saved of a result itself: masks, the softmax, what dropout left of it."""
        if name == "weights" and self.scores and self.masks:
            return (*self.scores, *self.masks, *self.scores)
        return {"weights": self.scores, "attended": self.masks, "fed": self.masks}.get(name, ())

    def keeps(self, tensor: Tensor) -> bool:
        """Whether a tensor that gradients read in general is read in this framework."""
        # Of what experts give only sizes are read, but autograd keeps it with `index_add`.
        return tensor.name != "fed_x" or not self.weighs_hidden or self.deterministic


FRAMEWORKS = {
    f.name: f
    for f in (
        Framework("none", "the closed form: each tensor once"),
        Framework(
            "rooflight",
            "Rooflight's own program: a scan over layers, logits in chunks",
            scans_layers=True,
            loss_tokens=2048,
            lanes=128,  # the compiler's tiles: heads of 64 are stored as 128, half of it padding
            splits_dims=True,
            in_step=True,
            model=("", "sp=Y", "tp=Y", "cp=Y", "ulysses=Y", "cp=W,sp=Y"),
            modes=(("cp", "ring"),),
            splits_queries=True,
            max_virtual=4,
        ),
        Framework(
            "megatron",
            "Megatron-LM with Transformer Engine and fused cross-entropy",
            loss=(_BF16, _BF16),  # the second one by the runs: the kernel itself works in place
            weighs_hidden=True,
            uses_te=True,
            unread_gradients=True,
            recipe="18",
            # Weights whole, optimizer state split: its distributed optimizer; or Megatron-FSDP.
            data=("", "dp=Z", "fsdp=X"),
            plain_fsdp=True,
            modes=(("cp", "ring"),),  # p2p
            folds_experts=True,
            max_virtual=64,
            spread=Spread(0.011, 0.021, 183),
            counted_ends=2,  # --account-for-embedding-in-pipeline-split and the same for the loss
        ),
        Framework(
            "maxtext",
            "MaxText: a scan over layers, fp32 weights, its remat policies",
            loss=(_BF16,),  # by the runs: 32,768 tokens x 262,144 words of a chip ran in 32 GB
            scans_layers=True,
            lanes=128,
            splits_dims=True,
            recipe="f32",
            in_step=True,
            model=("", "tp=Y", "sp=Y", "cp=Y", "cp=W,sp=Y"),
            modes=(("cp", "ring"),),
            folds_experts=True,
            max_virtual=4,
            whole_turns=True,
            remats=(
                "none",
                "dots",  # minimal
                "q+k+v+attended_heads+attended",  # save_dot_with_context_except_mlp
                "q+k+v+attended",  # save_dot_except_mlp
                "q+k+v",  # save_qkv_proj
                "attended",  # save_out_proj
                "q+k+v+attended_heads",  # custom, as its recipes for TPU7x and v5p; so with `fed`
                "q+k+v+attended_heads+fed",
                "attended+fed",
                "fed@host",
                "k+v+fed@host",
                "attended_heads+fed@host",
                "attended@host",
                "q+k+v+attended@host",
                "q+k+v@host",  # qkv_proj_offloaded
                "block",  # full
                "offload",  # full, the inputs of layers offloaded
            ),
        ),
        Framework(
            "nanotron",
            "Nanotron: unfused silu, whole inputs saved, gradients in bf16 and fp32",
            loss=(_BF16, _F32, _F32),
            keeps_gathered=True,  # by the runs: an option whose setting was not published
            keeps_activation=True,
            copies_gradients=True,
            cuts_by_flops=True,
            spread=Spread(0.037, 0.09, 19),
            data=("", "dp=Z"),
        ),
        Framework(
            "llm-foundry",
            "LLM Foundry: FSDP by layers, fused cross-entropy",
            loss=(_BF16, _BF16),
            gathers_blocks=True,
            recipe="f32",
            data=("fsdp=X",),
            model=("",),
        ),
        Framework(
            "deepspeed",
            "DeepSpeed ZeRO-3 for long sequences: the loss in tiles, inputs of layers on the host",
            gathers_blocks=True,
            loss_tokens=2048,
            recipe="f32",
            data=("fsdp=X",),
            model=("", "ulysses=Y"),
            remats=("none", "dots", "block", "offload"),
        ),
        Framework(
            "torchtitan",
            "torchtitan: FSDP by layers, cross-entropy that is not fused",
            loss=(_BF16, _F32, _F32, _F32),
            split_loss=(_BF16, _F32, _F32, _F32, _F32),
            gathers_blocks=True,
            keeps_weights=True,
            recipe="f32",
            modes=(("cp", "ring"),),  # rotate_method alltoall
            max_virtual=8,
            spread=Spread(0.03, 0.069, 12),
            reserved=0.07,  # by the runs: what is published is reserved memory
        ),
    )
}
# What a run may switch on or off; `--framework megatron+dropout` counts with it.
SETTINGS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "dropout": ("masks after attention, after the MLP and over scores", {"masks": (_BOOL,)}),
    "unfused-attention": ("the softmax of the scores is saved", {"scores": (_BF16,)}),
    "unfused-loss": ("cross-entropy in fp32, in place", {"loss": (_BF16, _F32)}),
    "compiled-loss": ("the same, compiled: not in place", {"loss": (_BF16, _F32, _F32)}),
    "deterministic": (
        "large workspaces of cuBLAS, `index_add` of experts",
        {"deterministic": True},
    ),
    "single-experts": ("experts one after the other, not grouped", {"groups_experts": False}),
    "fp8": ("inputs of weight matmuls are saved in fp8", {"inputs": DTYPES["fp8"]}),
    "tp-overlap": ("workspaces of three streams more", {"overlaps_tensors": True}),
    "unfused-gradients": ("weight gradients are added up apart", {"unread_gradients": False}),
}
PLANNED = ("megatron", "torchtitan", "maxtext", "rooflight")  # whose runs are planned for


def default_framework(chip: Chip) -> Framework:
    """What most people run on a kind of chip: Megatron-LM on GPUs; our own program elsewhere."""
    return FRAMEWORKS["megatron" if chip.kind == "gpu" else "rooflight"]


def parse_framework(text: str) -> Framework:
    """Finds a framework by name, with its settings; unknown names get a did-you-mean.

    >>> parse_framework("megatron+unfused-attention+dropout").label
    'megatron+unfused-attention+dropout'
    """
    name, *settings = text.split("+")
    if name not in FRAMEWORKS:
        raise UnknownNameError("framework", name, FRAMEWORKS)
    found = FRAMEWORKS[name]
    for setting in settings:
        if setting not in SETTINGS:
            raise UnknownNameError("setting of a framework", setting, SETTINGS)
        found = replace(found, settings=(*found.settings, setting), **dict(SETTINGS[setting][1]))
    return found


def workspace_bytes(framework: Framework, chip: Chip, *, has_experts: bool) -> int:
    """What libraries of matmuls keep: PyTorch for two threads, Transformer Engine for its streams.

    As in `getChosenWorkspaceSize` of PyTorch and `get_cublas_workspace_size_bytes` of Transformer
    Engine. Older releases of PyTorch take the smaller one on Blackwell: 48 MiB less in some runs.
    """
    if not framework.uses_te:
        return 0
    is_new = chip.detail.get("compute_capability", _HOPPER) >= _HOPPER
    torch = _LARGE if framework.deterministic or is_new else _DEFAULT
    engine = _LARGE if is_new else _SMALL
    streams = 1 + 4 * (has_experts and framework.groups_experts) + 3 * framework.overlaps_tensors
    return 2 * torch + streams * engine
