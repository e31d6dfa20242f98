"""A model as an `Answer`: parameters, FLOPs and KV cache by component."""

from rooflight.dtypes import Dtype
from rooflight.models.graph.summary import Component, Summary
from rooflight.models.spec import ModelSpec
from rooflight.ui.answer import Answer, Column, Table, Value
from rooflight.units import format_count, format_si


def show_size(value: float) -> str:
    """A number of nothing in particular."""
    return format_si(value, "").rstrip()


_COLUMNS = (
    Column("component", "component"),
    Column("params", "params", show_size),
    Column("active_params", "active", show_size),
    Column("nbytes", "bytes", show_size),
    Column("flops_per_token", "FLOPs/token", show_size),
    Column("kv_bytes_per_token", "KV B/token", show_size),
)


def model_answer(model: ModelSpec, summary: Summary, dtype: Dtype) -> Answer:
    """How large it is, where that is, and what a token costs."""
    active, tied = show_size(summary.active_params), ", tied head" if model.is_tied else ""
    total = (
        *("total", summary.params, summary.active_params, summary.nbytes),
        *(summary.flops_per_token, summary.kv_bytes_per_token),
    )
    rows = (*map(_row, summary.components), total)
    return Answer(
        sentences=(
            f"{model.title}: {format_count(summary.params)} parameters, {active} active a token",
            f"{model.num_layers} layers, D {model.d_model:,}, V {model.vocab:,}{tied};"
            f" {dtype.name}, forward and causal at {summary.seq:,} tokens",
        ),
        tables=(Table("components", "By component", _COLUMNS, rows),),
        notes=("", *_attention(summary), "", _source(model)),
    )


def _row(part: Component) -> tuple[Value, ...]:
    numbers = (part.params, part.active_params, part.nbytes)
    rest = (part.flops_per_token, part.kv_bytes_per_token)
    return (part.name, *(n or None for n in (*numbers, *rest)))


def _attention(summary: Summary) -> tuple[str, str]:
    share = f"scores are {summary.attention_share:.1%} of the FLOPs at {summary.seq:,} tokens"
    cache = f"one sequence keeps {format_si(summary.kv_bytes, 'B')} of keys and values"
    if summary.equal_seq_causal is None or summary.equal_seq_full is None:
        return f"{share}; windows keep them below the rest at any context", cache
    equal = f"{summary.equal_seq_causal:,} (causal) or {summary.equal_seq_full:,} (all pairs)"
    return f"{share}, and half of them at {equal}", cache


def _source(model: ModelSpec) -> str:
    if model.source is None:
        return "source: unknown"
    where = f", {model.source.url} ({model.source.checked})" if model.source.url else ""
    return f"source: {model.source.title}{where}"
