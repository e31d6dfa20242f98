"""`rooflight model`: the presets; with a name or a config.json, one model by component."""

import sys
from dataclasses import asdict

from rooflight.api.values import parse_seq
from rooflight.cli.flags import add_dtype
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.dtypes import Dtype, parse_dtype
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.graph.summary import Component, Summary, summarize
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import ModelSpec
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_si

HELP = "a model's parameters, FLOPs and KV cache by component; all presets if left out"

_DEFAULT_SEQ = 8192


def configure(parser: Parser) -> None:
    parser.add_argument(
        "model", nargs="?", help="a preset, such as llama3-70b, or the path of a config.json"
    )
    parser.add_argument(
        "--seq", default=str(_DEFAULT_SEQ), help=f"context in tokens ({_DEFAULT_SEQ} by default)"
    )
    add_dtype(parser)
    parser.set_examples(
        "rooflight model llama3-70b",
        "rooflight model deepseek-v3 --seq 32Ki --dtype fp8",
        "rooflight model --json",
    )


def run(args: Namespace) -> int:
    if args.model is None:
        return _list(args)
    model = load_model(args.model)
    dtype = parse_dtype(args.dtype)
    summary = summarize(model_graph(model), seq=parse_seq(args.seq), dtype=dtype)
    warn_of_gaps(model)
    if args.json:
        print_json("model", _document(model, summary, dtype))
        return 0
    show(_text(model, summary, dtype))
    return 0


def warn_of_gaps(model: ModelSpec) -> None:
    """Names on stderr what the config says and the counts leave out."""
    for gap in model.not_understood:
        print(f"warning: {model.name}: not understood: {gap}", file=sys.stderr)


def _list(args: Namespace) -> int:
    models = [load_model(name) for name in model_names()]
    counts = [(m, model_graph(m)) for m in models]
    if args.json:
        found = [
            {
                "name": m.name,
                "title": m.title,
                "params": count_params(g),
                "active_params": count_params(g, active=True),
            }
            for m, g in counts
        ]
        print_json("model", {"models": found})
        return 0
    rows = [
        (
            m.name,
            format_si(count_params(g), "").rstrip(),
            format_si(count_params(g, active=True), "").rstrip(),
            str(m.num_layers),
            format_count(m.d_model),
            "-" if m.max_seq is None else format_count(m.max_seq),
        )
        for m, g in counts
    ]
    header = ("model", "params", "active", "layers", "D", "context")
    show(f"{len(rows)} models; - is unknown\n\n{table(header, rows, align='lrrrrr')}")
    suggest("rooflight model llama3-70b")
    return 0


def _document(model: ModelSpec, summary: Summary, dtype: Dtype) -> dict[str, object]:
    return {
        "model": model.name,
        "title": model.title,
        "dtype": dtype.name,
        "num_layers": model.num_layers,
        "source": asdict(model.source) if model.source else None,
        "not_understood": list(model.not_understood),
        **asdict(summary),
    }


def _text(model: ModelSpec, summary: Summary, dtype: Dtype) -> str:
    active = format_si(summary.active_params, "").rstrip()
    first = f"{model.title}: {format_count(summary.params)} parameters, {active} active a token"
    rows = [_row(c) for c in summary.components]
    total = Component(
        "total",
        summary.params,
        summary.active_params,
        summary.nbytes,
        summary.flops_per_token,
        summary.kv_bytes_per_token,
    )
    header = ("component", "params", "active", "bytes", "FLOPs/token", "KV B/token")
    return "\n\n".join(
        (
            f"{first}\n{_shape(model)}; {dtype.name}, forward and causal at {summary.seq:,} tokens",
            table(header, [*rows, _row(total)], align="lrrrrr"),
            _attention(summary),
            _source(model),
        )
    )


def _shape(model: ModelSpec) -> str:
    tied = ", tied head" if model.is_tied else ""
    return f"{model.num_layers} layers, D {model.d_model:,}, V {model.vocab:,}{tied}"


def _row(part: Component) -> tuple[str, ...]:
    numbers = (part.params, part.active_params, part.nbytes)
    rest = (part.flops_per_token, part.kv_bytes_per_token)
    shown = [format_si(n, "").rstrip() if n else "-" for n in (*numbers, *rest)]
    return (part.name, *shown)


def _attention(summary: Summary) -> str:
    share = f"scores are {summary.attention_share:.1%} of the FLOPs at {summary.seq:,} tokens"
    cache = f"one sequence keeps {format_si(summary.kv_bytes, 'B')} of keys and values"
    if summary.equal_seq_causal is None or summary.equal_seq_full is None:
        return f"{share}; windows keep them below the rest at any context\n{cache}"
    equal = f"{summary.equal_seq_causal:,} (causal) or {summary.equal_seq_full:,} (all pairs)"
    return f"{share}, and half of them at {equal}\n{cache}"


def _source(model: ModelSpec) -> str:
    if model.source is None:
        return "source: unknown"
    where = f", {model.source.url} ({model.source.checked})" if model.source.url else ""
    return f"source: {model.source.title}{where}"
