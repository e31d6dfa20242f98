"""The seconds of a step as its source measured it.

Step time or tokens a second where the row has them. Else TFLOP/s or a utilisation, taken back to
tokens through the source's own way of counting FLOPs; where that is not known the row is refused,
because one run has a different utilisation under each convention.
"""

from collections.abc import Callable, Mapping

from rooflight.errors import UsageError
from rooflight.graph import Graph, training_flops
from rooflight.graph.count import dim_sizes, op_flops
from rooflight.graph.ops import HAS_FLOPS
from rooflight.reconcile.question import Question
from rooflight.reconcile.rows import read_facts


def _matmuls(graph: Graph, seq: int, *, causal: bool) -> float:
    return float(training_flops(graph, batch=1, seq=seq, causal=causal)) / seq


def _hardware(graph: Graph, seq: int) -> float:
    """Layers forward four times (once again, twice backward), the head three; full attention."""
    exact = {name: share * seq for name, share in graph.per_token.items()}
    sizes = dim_sizes(graph, batch=1, seq=seq) | exact
    layers = sum(
        op.count * op_flops(op, sizes, causal=False)
        for op in graph.ops
        if op.kind in HAS_FLOPS and op.block is not None
    )
    return _matmuls(graph, seq, causal=False) + float(layers) / seq


CONVENTIONS: Mapping[str, Callable[[Graph, int], float]] = {
    "causal attention": lambda graph, seq: _matmuls(graph, seq, causal=True),
    "full attention": lambda graph, seq: _matmuls(graph, seq, causal=False),
    "hardware": _hardware,
}


def convention(stated: str) -> str:
    """The convention that a source's words name.

    >>> convention("maxtext causal-halved"), convention("attention counted full (non-causal)")
    ('causal attention', 'full attention')
    """
    if "hardware" in stated:
        return "hardware"
    if "causal-halved" in stated or stated.startswith("causal"):
        return "causal attention"
    if "full" in stated:
        return "full attention"
    raise UsageError(f"nobody counts FLOPs as {stated!r}", hint="say causal-halved or full")


def measured_seconds(question: Question) -> tuple[float, tuple[str, ...]]:
    """Seconds of one step, and what was assumed to get them."""
    measured, chips = question.row.measured, question.run.mesh.slice.num_chips
    if "step_s" in measured:
        return float(measured["step_s"]), ()
    if "tokens_per_s_per_chip" in measured:
        return question.tokens / float(measured["tokens_per_s_per_chip"]) / chips, ()
    per_chip, assumed = _flops_per_s(question)
    stated = question.row.fields.get("flops")
    if stated is None:
        stated = read_facts("sources").get(question.row.source, {}).get("flops")
        assumed = (*assumed, f"FLOPs counted with {stated}")
    if stated is None:
        raise UsageError("only FLOP/s, and not how the source counts them", hint="add flops:")
    per_token = CONVENTIONS[convention(str(stated))](question.run.graph, question.run.seq)
    return question.tokens * per_token / per_chip / chips, assumed


def _flops_per_s(question: Question) -> tuple[float, tuple[str, ...]]:
    measured, chip = question.row.measured, question.run.mesh.slice.chip
    if "tflops_per_chip" in measured:
        return float(measured["tflops_per_chip"]) * 1e12, ()
    if "mfu" in measured:
        return float(measured["mfu"]) * chip.peak_flops("bf16"), ("of the dense bf16 peak",)
    raise UsageError("no step time, no rate, no utilisation", hint="add measured:")
