"""`Graph`: a model as contractions over named dims, and the tensors it keeps.

The dims, which every later layout shards by name:

    B   sequences                     E   routed experts
    T   query positions               C   tokens per expert receives (balanced: B*T*k/E)
    S   key positions                 F   feed-forward width
    D   model                         Fe  width of a routed expert
    V   vocabulary                    Fs  width of the shared experts together
    K   kv heads                      N   heads of latent attention
    G   query heads a kv head         Q   rank of the query latent
    H   head                          R   rank of the key-value latent
    Hv  value head (latent only)      P   rotary part of a head (latent only)
    L   rows of a position table

A dim that has two sizes in one model gets a number: F, F2. A tensor with a capital name is a
parameter; with a small name, an activation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rooflight.algebra.notation import Contraction, Tensor

Kind = Literal["matmul", "attention", "elementwise", "route", "lookup"]
KINDS: tuple[Kind, ...] = ("matmul", "attention", "elementwise", "route", "lookup")
HAS_FLOPS: tuple[Kind, ...] = ("matmul", "attention")


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query sees: all, those before it, or those in a window."""

    window: int | None = None

    def pairs(self, queries: int, keys: int, *, causal: bool) -> int:
        """Pairs of query and key that are multiplied; the queries are the last of the keys.

        Causal: query i of T sees S - T + i + 1 keys, at most the window. Full: every query is
        charged all keys, at most the window, as kernels without block skipping compute.

        >>> Mask().pairs(4, 4, causal=True), Mask(2).pairs(4, 4, causal=True)
        (10, 7)
        >>> Mask(2).pairs(4, 4, causal=False), Mask().pairs(1, 100, causal=True)
        (8, 100)
        """
        widest = keys if self.window is None else min(keys, self.window)
        if not causal:
            return queries * widest
        first = keys - queries + 1  # keys that the first query sees
        short = max(0, min(queries, widest - first))  # queries that see fewer than the widest
        return short * first + short * (short - 1) // 2 + (queries - short) * widest


@dataclass(frozen=True, slots=True)
class Op:
    """One contraction of the forward pass, unsharded, done `count` times in the model.

    Only `matmul` and `attention` have matrix FLOPs. A `lookup` is written with a one-hot operand
    and a `route` with a zero-one operand, because that is what they mean; both only move data.
    What a route writes has dim C instead of B and T: tokens are routed where they are, so C
    takes the axes of B and T, and moving them from C to E is the all-to-all of expert layouts.
    """

    name: str  # part.op, such as attention.q
    kind: Kind
    contraction: Contraction
    count: int = 1
    block: int | None = None  # index in ModelSpec.blocks; None outside the layers
    mask: Mask | None = None
    params: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The component it belongs to: attention, mlp, experts, head..."""
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Param:
    """A weight, `count` times in the model, of which a token uses the part `active`."""

    name: str  # part.tensor, such as attention.W_q
    tensor: Tensor
    count: int = 1
    block: int | None = None
    active: Fraction = Fraction(1)

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Cache:
    """What a layer keeps of every token for later queries, or of the last `window` tokens."""

    name: str
    tensor: Tensor
    count: int = 1
    block: int | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """The forward pass of a model, and all it is made of."""

    ops: tuple[Op, ...]
    params: tuple[Param, ...]
    caches: tuple[Cache, ...]
    sizes: Mapping[str, int]  # of the dims that do not depend on the batch
    per_token: Mapping[str, Fraction]  # of C: its size for each token of the batch
    order: tuple[int, ...]  # the block of every layer, first to last
