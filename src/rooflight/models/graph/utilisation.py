"""Model FLOPs utilisation under each convention that people publish, and who uses it.

In: a `Graph`, tokens per second, and the peak of the hardware. Out: one `Utilisation` a convention.
The same run has a different MFU under each, so a number without its convention says little.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rooflight.errors import ModelError
from rooflight.models.graph.count import (
    count_params,
    dim_sizes,
    op_flops,
    param_count,
    training_flops,
)
from rooflight.models.graph.ops import HAS_FLOPS, Graph, Op

Remat = Literal["none", "attention", "full"]
REMATS: tuple[Remat, ...] = ("none", "attention", "full")
_TABLES = ("embedding", "head")


@dataclass(frozen=True, slots=True)
class Convention:
    """A way to count the FLOPs of training on one token."""

    name: str
    formula: str
    used_by: str
    flops_per_token: Callable[[Graph, int], float]


@dataclass(frozen=True, slots=True)
class Utilisation:
    """One convention applied to a run."""

    convention: str
    formula: str
    used_by: str
    flops_per_token: float
    fraction: float  # of the peak


def six_nd(params: float, tokens: float) -> float:
    """Training FLOPs by the rule of thumb: 2 forward and 4 backward a parameter and token.

    C = 6 N D, chapter 4. It stops holding where attention counts (a context near 8 D) and, for a
    mixture of experts, N is the active parameters.

    >>> f"{six_nd(70e9, 15e12):.2g}"
    '6.3e+24'
    """
    return 6.0 * params * tokens


def _six_nd(graph: Graph, seq: int) -> float:
    return six_nd(count_params(graph, active=True), 1)


def _six_nd_without_tables(graph: Graph, seq: int) -> float:
    tables = sum(param_count(graph, p, active=True) for p in graph.params if p.part in _TABLES)
    return _six_nd(graph, seq) - 6.0 * float(tables)


def _attention_full(graph: Graph, seq: int) -> float:
    """Forward and backward of queries, keys and values, all T x T pairs, windows too."""
    sizes = dim_sizes(graph, batch=1, seq=seq)
    pairs = sum(
        op.count * 2 * math.prod(sizes[d] for d in op.contraction.dims)
        for op in graph.ops
        if op.kind == "attention"
    )
    return 3.0 * pairs / seq


def _palm(graph: Graph, seq: int) -> float:
    return _six_nd(graph, seq) + _attention_full(graph, seq)


def _matmuls_full(graph: Graph, seq: int) -> float:
    return training_flops(graph, batch=1, seq=seq, causal=False) / seq


def _matmuls_causal(graph: Graph, seq: int) -> float:
    return training_flops(graph, batch=1, seq=seq, causal=True) / seq


CONVENTIONS: tuple[Convention, ...] = (
    Convention(
        "6ND",
        "6 x active parameters",
        "budgets and scaling laws; chapters 4 and 6 of the book",
        _six_nd,
    ),
    Convention(
        "6ND without embeddings",
        "6 x active parameters less embedding and head",
        "Kaplan and others",
        _six_nd_without_tables,
    ),
    Convention(
        "6ND + full attention",
        "6 x active parameters + all T x T pairs",
        "PaLM appendix B, nanoGPT (less its position table)",
        _palm,
    ),
    Convention(
        "matmuls + full attention",
        "3 x every forward matmul, T x T pairs, windows counted",
        "torchtitan and older Megatron-LM, which also charge windows in full",
        _matmuls_full,
    ),
    Convention(
        "matmuls + causal attention",
        "3 x every forward matmul, only the pairs the mask lets through",
        "newer MaxText",
        _matmuls_causal,
    ),
)


def recomputed_flops_per_token(graph: Graph, seq: int, remat: Remat) -> float:
    """Forward FLOPs done a second time in the backward pass, causal.

    `attention` saves the results of all weight matmuls and redoes scores and mix; `full` keeps
    only the input of each block and redoes the block.
    """

    def is_redone(op: Op) -> bool:
        return op.block is not None and (remat == "full" or op.kind == "attention")

    if remat == "none":
        return 0.0
    exact = {name: share * seq for name, share in graph.per_token.items()}
    sizes = dim_sizes(graph, batch=1, seq=seq) | exact
    redone = (op for op in graph.ops if op.kind in HAS_FLOPS and is_redone(op))
    return float(sum(op.count * op_flops(op, sizes, causal=True) for op in redone)) / seq


def utilisation(
    graph: Graph, *, tokens_per_s: float, seq: int, peak_flops: float, remat: Remat = "none"
) -> tuple[Utilisation, ...]:
    """Every convention, then hardware FLOPs: what the chips executed, recomputation included.

    Raises `ModelError` where the hardware FLOPs exceed the peak: no run does that.
    """
    found = [
        _apply(
            c.name, c.formula, c.used_by, c.flops_per_token(graph, seq), tokens_per_s, peak_flops
        )
        for c in CONVENTIONS
    ]
    executed = _matmuls_causal(graph, seq) + recomputed_flops_per_token(graph, seq, remat)
    formula = f"causal matmuls + what remat={remat} recomputes"
    used_by = "hardware FLOPs utilisation (HFU), PaLM appendix B"
    hardware = _apply("hardware FLOPs", formula, used_by, executed, tokens_per_s, peak_flops)
    if hardware.fraction > 1:
        raise _impossible(hardware, tokens_per_s, peak_flops)
    return (*found, hardware)


def _apply(
    name: str, formula: str, used_by: str, flops: float, tokens_per_s: float, peak: float
) -> Utilisation:
    return Utilisation(name, formula, used_by, flops, flops * tokens_per_s / peak)


def _impossible(found: Utilisation, tokens_per_s: float, peak: float) -> ModelError:
    most = peak / found.flops_per_token
    return ModelError(
        f"{tokens_per_s:,.0f} tokens/s would be {found.fraction:.0%} of the peak in hardware FLOPs;"
        f" these chips compute at most {most:,.0f} tokens/s of this model",
        hint="check that tokens/s is the rate of the whole slice and counts each token once, that"
        " --on names all its chips, and that --dtype is what the matmuls ran in",
    )
