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
from rooflight.models.graph.summary import Summary, summarize
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import ModelSpec
from rooflight.ui.answer import Answer, Column, Table, show_count
from rooflight.ui.answers.hardware import model_answer, show_size
from rooflight.ui.text.answer import answer_text

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
    show(answer_text(model_answer(model, summary, dtype)))
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
    rows = tuple(
        (
            *(m.name, count_params(g), count_params(g, active=True)),
            *(m.num_layers, m.d_model, m.max_seq),
        )
        for m, g in counts
    )
    columns = (
        *(Column("model", "model"), Column("params", "params", show_size)),
        *(Column("active_params", "active", show_size), Column("num_layers", "layers")),
        *(Column("d_model", "D", show_count), Column("max_seq", "context", show_count)),
    )
    head = f"{len(rows)} models; - is unknown"
    show(answer_text(Answer((head,), tables=(Table("models", "Models", columns, rows),))))
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
