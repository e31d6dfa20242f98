"""The contractions that layouts produce: a table of layouts times a table of matmuls.

A layout says over which mesh axes each dim of each kind of tensor is split. Its matmuls, forward
and both backward, are the cases that `xla_report` hands to XLA and to the algebra. Dims: B
sequences, T positions, S key positions, D model, F feed-forward, N heads = K kv heads * G, H head
dim, V vocabulary, E experts, C tokens of an expert from one of the Q groups that tokens come in.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rooflight.algebra.autodiff import backward
from rooflight.algebra.notation import Contraction, Tensor, parse_axes

TOPOLOGY = "v5e:4x4"
# Kinds of tensor: x residual, w weights, h what is between two weights, c keys and values as they
# are made, k the same as attention reads them, s scores, u weights of keys and of the router,
# r the router's answer, m the routing mask, e tokens at their experts before and f between weights.
FOLLOWS = {"k": "h", "s": "h", "c": "h", "u": "w", "r": "x", "m": "x", "f": "e"}
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
    """Where each kind of tensor is split; a kind without a rule follows another (`FOLLOWS`)."""

    name: str
    mesh: str
    matmuls: str
    rules: str
    sizes: str


# name of the product: operands and result; the first letter of a tensor names its rule
_ATTENTION = {
    "q": "x[B,T,D] * w[D,N,H] -> h[B,T,N,H]",
    "kv": "x[B,T,D] * u[D,K,H] -> c[B,T,K,H]",
    "qk": "h[B,T,K,G,H] * k[B,S,K,H] -> s[B,K,G,T,S]",
    "av": "s[B,K,G,T,S] * k[B,S,K,H] -> h[B,T,K,G,H]",
    "o": "h[B,T,N,H] * w[N,H,D] -> x[B,T,D]",
}
MATMULS = {
    "attention": _ATTENTION,
    "train": _ATTENTION
    | {
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
        "router": "x[Q,T,D] * u[D,E] -> r[Q,T,E]",
        "dispatch": "m[Q,T,E,C] * x[Q,T,D] -> e[E,Q,C,D]",
        "in": "e[E,Q,C,D] * w[E,D,F] -> f[E,Q,C,F]",
        "out": "f[E,Q,C,F] * w[E,F,D] -> e[E,Q,C,D]",
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

# Rules end in the axes of a dim: `h B_X,inner_Y` splits B over X and the inner dim over Y.
_TP = "h B_X,inner_Y; w D_X,inner_Y"
_MQA = "h B_X,F_Y,N_Y,V_Y,G_Y; w D_X,F_Y,N_Y,V_Y; u D_X; c B_X; k B_X"
_LAYOUTS = """
# data parallel, and its weights split (ZeRO-3), over both axes, one of them, or a single axis
dp              | X=4,Y=4     | train     | x B_XY; h B_XY; w                         | 8B long
fsdp            | X=4,Y=4     | train     | x B_XY; h B_XY; w D_XY                    | 8B long
fsdp            | X=4,Y=4     | train     | x B_XY; h B_XY; w D_XY                    | 70B short
fsdp            | X=16        | train     | x B_X; h B_X; w D_X                       | 8B long
hsdp            | X=4,Y=4     | train     | x B_XY; h B_XY; w D_Y                     | 1B long
# tensor parallel: residual whole, split along the sequence, or along the model
tp              | X=16        | train     | x; h inner_X; w inner_X                   | 70B short
tp+seq          | X=16        | train     | x T_X; h inner_X; w inner_X               | 70B short
dp+tp           | X=4,Y=4     | train     | x B_X; h B_X,inner_Y; w inner_Y           | 8B long
dp+tp+seq       | X=4,Y=4     | train     | x B_X,T_Y; h B_X,inner_Y; w inner_Y       | 8B long
# both: the weights are split over the data axis too
fsdp+tp         | X=4,Y=4     | train     | x B_X; {tp}                               | 8B long
fsdp+tp         | X=4,Y=4     | train     | x B_X; {tp}                               | 70B short
fsdp+tp+seq     | X=4,Y=4     | train     | x B_X,T_Y; {tp}                           | 70B long
fsdp+tp+seq     | X=4,Y=4     | train     | x B_X,T_Y; {tp}                           | 1B short
fsdp+tp+seq     | X=2,Y=8     | train     | x B_X,T_Y; {tp}                           | 8B long
fsdp+tp+model   | X=4,Y=4     | train     | x B_X,D_Y; {tp}                           | 8B long
fsdp+tp+model   | X=2,Y=8     | train     | x B_X,D_Y; {tp}                           | 70B short
dp+fsdp+tp      | X=2,Y=2,Z=4 | train     | x B_XY,T_Z; h B_XY,inner_Z; w D_Y,inner_Z | 70B long
# one kv head: it cannot be split, so each device of the tensor axis has it whole
mqa+tp          | X=4,Y=4     | train     | x B_X; {mqa}                              | mqa long
mqa+tp+seq      | X=4,Y=4     | train     | x B_X,T_Y; {mqa}                          | mqa long
mqa+tp+model    | X=4,Y=4     | train     | x B_X,D_Y; {mqa}                          | mqa long
mqa+tp+model    | X=2,Y=8     | train     | x B_X,D_Y; {mqa}                          | mqa short
# long contexts: keys are gathered, or positions are exchanged for heads
context         | X=4,Y=4     | train     | x B_X,T_Y; h B_X,T_Y; k B_X,S_Y; w D_XY   | 8B long
ulysses         | X=4,Y=4     | attention | x B_X,T_Y; h B_X,inner_Y; w D_X           | 8B long
ulysses         | X=2,Y=8     | attention | x B_X,T_Y; h B_X,inner_Y; w D_XY          | 1B long
# serving: weights stay where they are, in one or two dims, or the keys are split
decode tp       | X=16        | decode    | x; h inner_X; w inner_X                   | 70B decode
decode dp+tp    | X=4,Y=4     | decode    | x B_X; h B_X,inner_Y; w inner_Y           | 8B decode
decode 2d       | X=4,Y=4     | decode    | x D_X; h inner_Y; w D_X,inner_Y           | 70B decode
decode 2d+batch | X=4,Y=4     | decode    | x D_XY; h B_X,inner_Y; w D_X,inner_Y      | 70B decode
decode kv       | X=4,Y=4     | decode    | x B_X; h B_X; k B_X,S_Y; s B_X,S_Y; w D_Y | 8B decode
# experts: tokens of a group go to the devices that hold the expert
experts         | X=4,Y=4     | experts   | x Q_XY; e E_XY; w E_XY; u                 | routed
experts         | X=16        | experts   | x Q_X; e E_X; w E_X; u                    | wide
experts+dp      | X=4,Y=4     | experts   | x Q_XY; e E_Y,Q_X; w E_Y; u               | routed
experts+fsdp    | X=4,Y=4     | experts   | x Q_XY; e E_Y,Q_X; w E_Y,D_X; u D_X       | routed
experts+tp      | X=4,Y=4     | experts   | x Q_X; e E_X,inner_Y; w E_X,inner_Y; u    | wide
experts+tp      | X=2,Y=8     | experts   | x Q_X; e E_X,inner_Y; w E_X,inner_Y; u    | wide
"""


def layouts() -> list[Layout]:
    """The rows of the table."""
    rows = [line for line in _LAYOUTS.splitlines() if line and not line.startswith("#")]
    cells = ([cell.strip() for cell in row.split("|")] for row in rows)
    return [
        Layout(name, mesh, matmuls, rules.format(tp=_TP, mqa=_MQA), sizes)
        for name, mesh, matmuls, rules, sizes in cells
    ]


def cases() -> list[Case]:
    """Every distinct case, in the order of the tables."""
    found: dict[str, Case] = {}
    for layout in layouts():
        for case in _cases_of(layout):
            found.setdefault(case.text, case)
    return list(found.values())


def _cases_of(layout: Layout) -> Iterator[Case]:
    tables = SIZES | TOKENS
    known = {d: n for word in layout.sizes.split() for d, n in tables[word].items()}
    for product, text in MATMULS[layout.matmuls].items():
        forward = _contraction(text, layout.rules)
        kinds = {product: forward}
        if layout.matmuls != "decode":
            left, right = backward(forward)
            kinds |= {f"{product} d left": left, f"{product} d right": right}
        for kind, contraction in kinds.items():
            name = f"{layout.name}, {layout.sizes}, {layout.mesh}: {kind}"
            dims = {d: known[d] for d in contraction.dims}
            yield Case(name, layout.mesh, contraction, dims)


def _contraction(text: str, rules: str) -> Contraction:
    left, right, result = (
        _tensor(name, dims.split(","), rules)
        for name, dims in re.findall(r"(\w)\[([\w,]*)\]", text)
    )
    return Contraction((left, right), result)


def _tensor(name: str, dims: list[str], rules: str) -> Tensor:
    rule = _rule(name, rules)
    split = [rule.get(d) or rule.get("inner" if d in INNER else d, "") for d in dims]
    return Tensor(name, tuple(dims), tuple(parse_axes(a) if a else () for a in split))


def _rule(name: str, rules: str) -> dict[str, str]:
    """The axes of each dim of a kind of tensor: `h B_X,inner_Y` -> {B: X, inner: Y}."""
    table = {part.strip()[0]: part.strip()[1:].strip() for part in rules.split(";")}
    text = table[name if name in table else FOLLOWS[name]]
    entries = [entry.split("_") for entry in text.split(",") if entry]
    return {dim: axes for dim, axes in entries}
