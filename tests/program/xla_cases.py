"""The contractions that layouts produce: a table of layouts times a table of products.

A layout says over which mesh axes each dim of each kind of tensor is split. Its products, forward
and both backward, are the cases that `xla_report` hands to XLA and to the algebra. Dims: B
sequences, T positions, S key positions, D model, F feed-forward, N heads = K kv heads * G, H head
dim, V vocabulary, E experts, C tokens of an expert from one of the Q groups that tokens come in.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rooflight.algebra import Contraction, Tensor, backward, parse_axes

TOPOLOGY = "v5e:4x4"
FOLLOWS = {"k": "h", "s": "h", "c": "h", "u": "w"}  # whose rule a kind without one has
INNER = ("F", "N", "K", "V")  # what tensor parallelism splits; a rule writes it `inner`


@dataclass(frozen=True, slots=True)
class Case:
    """One contraction with its sizes and its mesh."""

    name: str
    mesh: str
    contraction: Contraction
    dims: Mapping[str, int]

    @property
    def text(self) -> str:
        """What makes the case distinct: mesh, shardings and sizes."""
        sizes = ",".join(f"{d}={n}" for d, n in self.dims.items())
        return f"{self.contraction} with {sizes} on {self.mesh}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each kind of tensor is split: `x` residual, `h` inside a block, `w` weights, and others.

    Without a rule of their own, keys `k` and scores `s` follow `h`.
    """

    name: str
    mesh: str
    products: str
    rules: str
    sizes: tuple[str, ...]


# name of the product: operands and result; the first letter of a tensor names its rule
PRODUCTS = {
    "train": {
        "q": "x[B,T,D] * w[D,N,H] -> h[B,T,N,H]",
        "kv": "x[B,T,D] * u[D,K,H] -> c[B,T,K,H]",
        "qk": "h[B,T,K,G,H] * k[B,S,K,H] -> s[B,K,G,T,S]",
        "av": "s[B,K,G,T,S] * k[B,S,K,H] -> h[B,T,K,G,H]",
        "o": "h[B,T,N,H] * w[N,H,D] -> x[B,T,D]",
        "in": "x[B,T,D] * w[D,F] -> h[B,T,F]",
        "out": "h[B,T,F] * w[F,D] -> x[B,T,D]",
        "head": "x[B,T,D] * w[D,V] -> h[B,T,V]",
    },
    "decode": {
        "q": "x[B,D] * w[D,N,H] -> h[B,N,H]",
        "kv": "x[B,D] * u[D,K,H] -> c[B,K,H]",
        "qk": "h[B,K,G,H] * k[B,S,K,H] -> s[B,K,G,S]",
        "av": "s[B,K,G,S] * k[B,S,K,H] -> h[B,K,G,H]",
        "o": "h[B,N,H] * w[N,H,D] -> x[B,D]",
        "in": "x[B,D] * w[D,F] -> h[B,F]",
        "out": "h[B,F] * w[F,D] -> x[B,D]",
        "head": "x[B,D] * w[D,V] -> h[B,V]",
    },
    "experts": {
        "router": "x[Q,T,D] * u[D,E] -> c[Q,T,E]",
        "dispatch": "m[Q,T,E,C] * x[Q,T,D] -> e[E,Q,C,D]",
        "in": "e[E,Q,C,D] * w[E,D,F] -> h[E,Q,C,F]",
        "out": "h[E,Q,C,F] * w[E,F,D] -> e[E,Q,C,D]",
        "combine": "m[Q,T,E,C] * e[E,Q,C,D] -> x[Q,T,D]",
    },
}

SIZES = {
    "8B": {"D": 4096, "F": 14336, "N": 32, "K": 16, "G": 2, "H": 128, "V": 131072},
    "70B": {"D": 8192, "F": 28672, "N": 64, "K": 16, "G": 4, "H": 128, "V": 131072},
    "mqa": {"D": 6144, "F": 24576, "N": 64, "K": 1, "G": 64, "H": 128, "V": 65536},
    "1B": {"D": 2048, "F": 8192, "N": 32, "K": 16, "G": 2, "H": 64, "V": 131072},
}
TOKENS = {
    "long": {"B": 16, "T": 4096, "S": 4096},
    "short": {"B": 16, "T": 256, "S": 256},
    "decode": {"B": 1024, "S": 8192},
    "routed": {"Q": 16, "T": 2048, "E": 64, "C": 256, "D": 4096, "F": 2048},
    "wide": {"Q": 16, "T": 1024, "E": 16, "C": 128, "D": 8192, "F": 32768},
}

LAYOUTS = (
    # data parallel, and its weights split (ZeRO-3), over both axes, one of them, or a single axis
    Layout("dp", "X=4,Y=4", "train", "x B_XY; h B_XY; w", ("8B long",)),
    Layout("fsdp", "X=4,Y=4", "train", "x B_XY; h B_XY; w D_XY", ("8B long", "70B short")),
    Layout("fsdp16", "X=16", "train", "x B_X; h B_X; w D_X", ("8B long",)),
    Layout("hsdp", "X=4,Y=4", "train", "x B_XY; h B_XY; w D_Y", ("1B long",)),
    # tensor parallel: residual whole, split along the sequence, or along the model
    Layout("tp16", "X=16", "train", "x; h inner_X; w inner_X", ("70B short",)),
    Layout("tp16+seq", "X=16", "train", "x T_X; h inner_X; w inner_X", ("70B short",)),
    Layout("dp+tp", "X=4,Y=4", "train", "x B_X; h B_X,inner_Y; w inner_Y", ("8B long",)),
    Layout("dp+tp+seq", "X=4,Y=4", "train", "x B_X,T_Y; h B_X,inner_Y; w inner_Y", ("8B long",)),
    # both: weights split over the data axis too
    Layout(
        "fsdp+tp",
        "X=4,Y=4",
        "train",
        "x B_X; h B_X,inner_Y; w D_X,inner_Y",
        ("8B long", "70B short"),
    ),
    Layout("fsdp+tp+seq", "X=4,Y=4", "train", "x B_X,T_Y; h B_X,inner_Y; w D_X,inner_Y", ("70B long",)),
    Layout("fsdp+tp+model", "X=4,Y=4", "train", "x B_X,D_Y; h B_X,inner_Y; w D_X,inner_Y", ("8B long",)),
    Layout("fsdp+tp 2x8", "X=2,Y=8", "train", "x B_X,T_Y; h B_X,inner_Y; w D_X,inner_Y", ("8B long",)),
    Layout(
        "dp+fsdp+tp",
        "X=2,Y=2,Z=4",
        "train",
        "x B_XY,T_Z; h B_XY,inner_Z; w D_Y,inner_Z",
        ("70B long",),
    ),
    # one kv head: it cannot be split, so each device of the tensor axis keeps it whole
    Layout("mqa+tp", "X=4,Y=4", "train", "x B_X; h B_X,F_Y,N_Y,V_Y,G_Y; w D_X,F_Y,N_Y,V_Y; u D_X; c B_X; k B_X", ("mqa long",)),
    Layout("mqa+seq", "X=4,Y=4", "train", "x B_X,T_Y; h B_X,F_Y,N_Y,V_Y,G_Y; w D_X,F_Y,N_Y,V_Y; u D_X; c B_X; k B_X", ("mqa long",)),
    Layout("mqa+model", "X=4,Y=4", "train", "x B_X,D_Y; h B_X,F_Y,N_Y,V_Y,G_Y; w D_X,F_Y,N_Y,V_Y; u D_X; c B_X; k B_X", ("mqa long",)),
    Layout("mqa+model 2x8", "X=2,Y=8", "train", "x B_X,D_Y; h B_X,F_Y,N_Y,V_Y,G_Y; w F_Y,N_Y,V_Y; u; c B_X; k B_X", ("mqa short",)),
    # context parallel: queries stay, keys are gathered
    Layout("context", "X=4,Y=4", "train", "x B_X,T_Y; h B_X,T_Y; k B_X,S_Y; w D_XY", ("8B long",)),
    # serving
    Layout("decode tp", "X=16", "decode", "x; h inner_X; w inner_X", ("70B decode",)),
    Layout("decode dp+tp", "X=4,Y=4", "decode", "x B_X; h B_X,inner_Y; w inner_Y", ("8B decode",)),
    Layout("decode 2d", "X=4,Y=4", "decode", "x D_X; h inner_Y; w D_X,inner_Y", ("70B decode",)),
    Layout(
        "decode kv",
        "X=4,Y=4",
        "decode",
        "x B_X; h B_X; k B_X,S_Y; s B_X,S_Y; w D_Y",
        ("8B decode",),
    ),
    # experts: tokens of a group are routed to the axis that holds the expert
    Layout("experts", "X=4,Y=4", "experts", "m Q_XY; x Q_XY; e E_XY; h E_XY; w E_XY; u; c Q_XY", ("routed",)),
    Layout("experts+dp", "X=4,Y=4", "experts", "m Q_XY; x Q_XY; e E_Y,Q_X; h E_Y,Q_X; w E_Y; u; c Q_XY", ("routed",)),
    Layout("experts+fsdp", "X=4,Y=4", "experts", "m Q_XY; x Q_XY; e E_Y,Q_X; h E_Y,Q_X; w E_Y,D_X; u D_X; c Q_XY", ("routed",)),
    Layout("experts+tp", "X=4,Y=4", "experts", "m Q_X; x Q_X; e E_X; h E_X,inner_Y; w E_X,inner_Y; u; c Q_X", ("wide",)),
)


def cases() -> list[Case]:
    """Every distinct case, in the order of the tables."""
    found = {case.text: case for layout in LAYOUTS for case in _cases_of(layout)}
    return list(found.values())


def _cases_of(layout: Layout) -> Iterator[Case]:
    for sizes in layout.sizes:
        known = {d: n for word in sizes.split() for d, n in (SIZES | TOKENS)[word].items()}
        for product, text in PRODUCTS[layout.products].items():
            forward = _contraction(text, layout.rules)
            kinds = {"": forward}
            if layout.products != "decode":
                kinds |= zip((" d left", " d right"), backward(forward), strict=True)
            for kind, contraction in kinds.items():
                name = f"{layout.name}, {sizes}: {product}{kind}"
                dims = {d: known[d] for d in contraction.dims}
                yield Case(name, layout.mesh, contraction, dims)


def _contraction(text: str, rules: str) -> Contraction:
    left, right, result = (
        _tensor(name, dims.split(","), rules)
        for name, dims in re.findall(r"(\w)\[([\w,]*)\]", text)
    )
    return Contraction((left, right), result)


def _tensor(name: str, dims: list[str], rules: str) -> Tensor:
    split = _rule(name, rules)
    axes = tuple(split.get(d) or split.get("inner" if d in INNER else d, "") for d in dims)
    return Tensor(name, tuple(dims), tuple(parse_axes(a) if a else () for a in axes))


def _rule(name: str, rules: str) -> dict[str, str]:
    """The axes of each dim of a kind of tensor: `h B_X,inner_Y` -> {B: X, inner: Y}."""
    table = dict(part.strip().partition(" ")[::2] for part in rules.split(";"))
    text = table[name if name in table else FOLLOWS[name]]
    return dict(entry.split("_") for entry in text.split(",") if entry)
