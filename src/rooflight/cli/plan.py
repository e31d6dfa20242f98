"""`rooflight plan`: the fastest layouts that fit, and why."""

import shlex

from rooflight.cli.batch import parse_seq, whole_sequences
from rooflight.cli.flags import add_choice, add_dtype, add_on
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import print_json, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.dtypes import parse_dtype
from rooflight.graph import model_graph
from rooflight.plan.recipe import RECIPES, parse_recipe
from rooflight.plan.search import Candidate, Question, Search
from rooflight.plan.step_time import OVERLAPS
from rooflight.plan.training import plan_training
from rooflight.report.table import table
from rooflight.specs.presets import load_model
from rooflight.specs.slice import parse_slice
from rooflight.units import format_count, format_seconds, format_si

HELP = "the fastest layouts of a model on a slice that fit, and what binds them"


def configure(parser: Parser) -> None:
    add_choice(parser, "what", ("train",), what="plan", default=None, help="train: a training step")
    parser.add_argument("model", help="a preset such as llama3-70b, or a config.json")
    add_on(parser)
    parser.add_argument("--batch", required=True, metavar="TOKENS", help="tokens a step: 4Mi")
    parser.add_argument("--seq", required=True, metavar="TOKENS", help="tokens a sequence: 4096")
    add_dtype(parser)
    add_choice(
        parser,
        "--recipe",
        tuple(RECIPES),
        what="recipe",
        default="10",
        help="what is stored of a parameter, by its bytes (see `rooflight fit --help`)",
    )
    add_choice(
        parser,
        "--overlap",
        OVERLAPS,
        what="overlap",
        default="sum",
        help="collectives of different mesh axes queue up (sum) or run side by side (max)",
    )
    parser.set_examples(
        "rooflight plan train llama3-8b --on v5e:4x4 --batch 64Ki --seq 4096",
        "rooflight plan train llama3-70b --on v5p:16x20x28 --batch 9175040 --seq 4096",
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    seq = parse_seq(args.seq)
    question = Question(
        model_graph(model),
        parse_slice(args.on),
        whole_sequences(args.batch, seq),
        seq,
        parse_dtype(args.dtype),
        args.overlap,
    )
    found = plan_training(question, recipe=parse_recipe(args.recipe))
    if args.json:
        print_json("plan", _document(model.name, question, found))
        return 0
    print(_text(model.title, question, found))
    best = found.candidates[0]
    where = f"--layout {best.layout.text} --on {shlex.quote(args.on)} --mesh {best.mesh}"
    sizes = f"--batch {question.batch * seq} --seq {seq}"
    suggest(
        f"rooflight explain {args.model} {where} {sizes}",
        f"rooflight fit {args.model} {where} {sizes} --recipe {args.recipe} --remat {best.remat}",
    )
    return 0


def _document(name: str, question: Question, found: Search) -> dict[str, object]:
    return {
        "model": name,
        "on": str(question.on),
        "batch": question.batch,
        "seq": question.seq,
        "overlap": question.overlap,
        "num_named": found.num_named,
        "num_dividing": found.num_dividing,
        "num_derived": found.num_derived,
        "num_unfit": found.num_unfit,
        "candidates": [_candidate_document(c, question) for c in found.candidates],
    }


def _candidate_document(candidate: Candidate, question: Question) -> dict[str, object]:
    time = candidate.time
    return {
        "layout": candidate.layout.text,
        "mesh": str(candidate.mesh),
        "remat": candidate.remat,
        "expected_s": time.expected_s(question.overlap),
        "lower_s": time.lower_s,
        "upper_s": time.upper_s,
        "products_s": time.products_s,
        "collectives_s": dict(time.axes_s),
        "waits_s": dict(time.waits_s),
        "mfu_causal": time.mfu(question.overlap),
        "binds": time.binds(question.overlap),
        "hbm_bytes": candidate.memory.total_bytes if candidate.memory else None,
    }


def _text(title: str, question: Question, found: Search) -> str:
    best = found.candidates[0]
    time, overlap = best.time, question.overlap
    tokens = format_count(question.batch * question.seq)
    return (
        f"{title} on {question.on}, {tokens} tokens a step: {best.layout.text} with {best.mesh},"
        f" {format_seconds(time.expected_s(overlap))}, bound by {time.binds(overlap)}\n"
        f"{format_count(found.num_dividing)} of {format_count(found.num_named)} layouts divide,"
        f" {found.num_derived} derived exactly, {found.num_unfit} of those do not fit\n\n"
        f"{_table(question, found)}\n\n{_why(question, found)}\n"
        "uncalibrated: what the roofs allow, without overheads; a thousandth is a tie"
    )


def _table(question: Question, found: Search) -> str:
    header = ("", "layout", "mesh", "step", "bound by", "collectives", "remat", "HBM", "MFU")
    rows = [[str(i), *_row(c, question)] for i, c in enumerate(found.candidates, 1)]
    return table(header, rows, align="rllrlrlrr")


def _row(candidate: Candidate, question: Question) -> list[str]:
    time, overlap = candidate.time, question.overlap
    held = candidate.memory
    return [
        candidate.layout.text,
        str(candidate.mesh),
        format_seconds(time.expected_s(overlap)),
        time.binds(overlap),
        format_seconds(time.collectives_s(overlap)),
        candidate.remat,
        format_si(held.total_bytes, "B") if held else "-",
        f"{time.mfu(overlap):.1%}",
    ]


def _why(question: Question, found: Search) -> str:
    best = found.candidates[0]
    time, overlap = best.time, question.overlap
    products = format_seconds(time.products_s)
    collectives = format_seconds(time.collectives_s(overlap))
    return (
        f"why: {products} of products against {collectives} of collectives,"
        f" which overlap; nothing overlapped it takes {format_seconds(time.upper_s)}"
    )
