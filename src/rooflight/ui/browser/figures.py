"""The figures and animations of the book, and where each is live in the explorer.

Numbers of figures are those of the PDF edition of 2025; those of chapter 12 are the newer
edition's. `question` may name {model} and {on}, which *Book* fills with what was asked for.
"""

from dataclasses import dataclass

from rooflight.ui.browser.answer import ViewLink

MODEL, ON = "llama3-70b", "v5p:4x4x4"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the book: what it shows, and the view and picture that show it live."""

    where: str  # its number, or the chapter it is in
    shows: str
    view: str
    picture: str  # key of a picture or film of the answer
    question: tuple[tuple[str, str], ...] = ()

    def link(self, model: str = MODEL, on: str = ON) -> ViewLink:
        """The question, filled in."""
        filled = tuple(
            (name, value.replace("{model}", model).replace("{on}", on))
            for name, value in self.question
        )
        return ViewLink(self.shows, self.view, filled)


def _shard(where: str, shows: str, arrays: str, **more: str) -> Figure:
    """A matmul or an array over four or more devices."""
    question = {"on": "v5e:2x2", "mesh": "X=2,Y=2", "dims": "I=1024,J=1024,K=1024"} | more
    picture = "steps" if "->" in arrays else "holders"
    return Figure(where, shows, "shard", picture, (("arrays", arrays), *question.items()))


def _hops(where: str, shows: str, kind: str, on: str = "v5e:16x1", **more: str) -> Figure:
    picture = "exchange" if kind == "expert-dispatch" else "hops"
    return Figure(where, shows, "collectives", picture, (("kind", kind), ("on", on), *more.items()))


def _train(where: str, shows: str, picture: str, **more: str) -> Figure:
    question = {"model": "{model}", "on": "{on}", "batch": "1M"} | more
    return Figure(where, shows, "train", picture, tuple(question.items()))


def _serve(where: str, shows: str, picture: str, **more: str) -> Figure:
    question = {"model": "{model}", "on": "v5e:4x4", "context": "8192"} | more
    return Figure(where, shows, "serve", picture, tuple(question.items()))


_LAYER = {"dims": "B=4096,D=8192,F=32768", "on": "v5p:4x4x1", "mesh": "X=4,Y=4"}

FIGURES: tuple[Figure, ...] = (
    Figure("2", "roofline", "roofline", "roofline"),
    Figure("3", "parts of a chip", "chip", "parts", (("show", "parts"),)),
    Figure(
        "ch. 2, animation",
        "an elementwise product streamed from HBM through VMEM",
        "chip",
        "stream",
        (("show", "HBM streaming"), ("op", "elementwise product")),
    ),
    Figure(
        "ch. 2, animation",
        "a matmul streamed from HBM through VMEM",
        "chip",
        "stream",
        (("show", "HBM streaming"), ("op", "matmul")),
    ),
    Figure(
        "app. B, animation",
        "a systolic array that multiplies",
        "chip",
        "systolic",
        (("show", "systolic array"), ("m", "4"), ("k", "4"), ("n", "4")),
    ),
    Figure(
        "app. B, animation",
        "several tiles through a systolic array, without a bubble between them",
        "chip",
        "systolic",
        (
            *(("show", "systolic array"), ("rows", "3"), ("cols", "3")),
            *(("m", "4"), ("k", "6"), ("n", "6"), ("registers", "2")),
        ),
    ),
    _shard("7", "an array on four devices", "A[I_X,J_Y]"),
    _shard("ch. 3", "the whole array on every device", "A[I,J]"),
    _shard("ch. 3", "one dim split, copies along the other axis", "A[I_X,J]"),
    _shard("ch. 3", "one dim split over two axes", "A[I_XY,J]"),
    _shard("ch. 3", "the same, the axes in the other order", "A[I_YX,J]"),
    _shard("ch. 3", "a matmul with no collective", "A[I_X,J] * B[J,K_Y] -> C[I_X,K_Y]"),
    _shard("ch. 3", "a contracted dim split on one side", "A[I,J_X] * B[J,K] -> C[I,K]"),
    _shard("ch. 3", "a contracted dim split on both sides", "A[I,J_X] * B[J_X,K] -> C[I,K]"),
    _shard("ch. 3", "both sides split over one axis", "A[I_X,J] * B[J,K_X] -> C[I_X,K]"),
    _hops("ch. 3, animation", "all-gather round a ring", "all-gather"),
    _hops("ch. 3, animation", "reduce-scatter round a ring", "reduce-scatter"),
    _hops("ch. 3", "all-reduce: both, one after the other", "all-reduce"),
    _hops("ch. 3, animation", "all-to-all round a ring", "all-to-all"),
    _hops(
        "ch. 3", "all-gather on a line, which has no link round its end", "all-gather", "v5e:8x1"
    ),
    _hops("ch. 3", "all-gather over all axes of a torus", "all-gather", "v5p:4x4x4"),
    _hops("ch. 4, MoE", "tokens to their experts beside a broadcast", "expert-dispatch", "v5e:8x1"),
    _shard("11", "data parallelism", "In[B_X,D] * W[D,F] -> Out[B_X,F]", **_LAYER),
    _shard("12", "FSDP", "In[B_X,D] * W[D_X,F] -> Out[B_X,F]", **_LAYER),
    _shard("13", "tensor parallelism", "In[B,D_Y] * W[D,F_Y] -> Out[B,F_Y]", **_LAYER),
    _shard(
        "14", "FSDP and tensor parallelism", "In[B_X,D_Y] * W[D_X,F_Y] -> Out[B_X,F_Y]", **_LAYER
    ),
    _shard(
        "7.6, 2D weights",
        "weights split both ways, activations gathered and scattered",
        "In[B,D_XY] * W[D_X,F_Y] -> Out[B,F_XY]",
        **_LAYER,
    ),
    _train("15, 16, ch. 5 interactive", "time against batch: FSDP, tensor, both", "time"),
    _train("app. 5.4.1", "what a chip holds: weights, gradients, optimizer", "memory"),
    Figure(
        "17",
        "a pipeline schedule",
        "train",
        "pipeline",
        (("model", "llama3-70b"), ("on", "h100:8x16"), ("batch", "4194304"), ("seq", "8192")),
    ),
    _train("ch. 6", "layouts of Llama 3 70B on a pod", "time", on="v5p:16x20x28", batch="4M"),
    _serve("20", "latency against throughput", "frontier", dtypes="int8"),
    _serve("7.1.7", "KV cache, weights and FLOPs against context", "context", model="llama2-13b"),
    _shard(
        "24",
        "attention with the cache split by batch: queries change places",
        "Q[B,N_Y,H] * K[B_Y,S,H] -> P[B_Y,N,S]",
        dims="B=64,N=32,S=8192,H=128",
        on="v5e:4x4",
        mesh="X=4,Y=4",
    ),
    _serve("ch. 8", "latency against throughput of Llama 3 70B", "frontier", model="llama3-70b"),
    _serve("ch. 8", "what its step is spent on, by context", "context", model="llama3-70b"),
    _hops("ch. 12", "all-gather behind a switch", "all-gather", "h100:8"),
    _hops("ch. 12", "all-gather over a tree of two nodes", "all-gather", "h100:4x2"),
    _hops("ch. 12", "all-to-all over a tree of two nodes", "all-to-all", "h100:4x2"),
)
