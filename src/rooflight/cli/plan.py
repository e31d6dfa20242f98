"""`rooflight plan`: the fastest layouts that fit, and why."""

import shlex
from dataclasses import replace

from rooflight.cli.batch import parse_seq, nearest_sequences
from rooflight.cli.flags import add_choice, add_dtype, add_on
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.plan_page import plan_text
from rooflight.cli.progress import progress
from rooflight.dtypes import parse_dtype
from rooflight.graph import model_graph
from rooflight.plan.recipe import RECIPES, parse_recipe
from rooflight.plan.search import Candidate, Question
from rooflight.plan.stage_time import OVERLAPS
from rooflight.plan.training import better_batch, nearest_batch, plan_record, plan_training
from rooflight.records import Choice, to_json
from rooflight.specs.presets import load_model
from rooflight.specs.slice import parse_slice

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
        "rooflight plan train llama3-70b --on v5p:16x20x28 --batch 4M --seq 4096",
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    seq = parse_seq(args.seq)
    batch, is_whole = nearest_sequences(args.batch, seq)
    question = Question(
        model_graph(model),
        parse_slice(args.on),
        batch,
        seq,
        parse_dtype(args.dtype),
        args.overlap,
        parse_recipe(args.recipe),
    )
    choices: tuple[Choice, ...] = ()
    if not is_whole:
        question = replace(question, batch=nearest_batch(question))
        because = f"whole sequences that suit the slice, nearest to --batch {args.batch}"
        choices = (Choice("batch", f"{question.batch * seq}", because),)
    with progress("patterns", "layouts priced") as watch:
        found = plan_training(question, watch=watch)
    if args.json:
        print(to_json(plan_record(model, question, found, choices)), end="")
        return 0
    print(plan_text(model.title, question, found, choices))
    _suggest(args, question, found.candidates[0])
    return 0


def _suggest(args: Namespace, question: Question, best: Candidate) -> None:
    where = f"--layout {best.layout.text} --on {shlex.quote(args.on)} --mesh {best.mesh}"
    sizes = f"--batch {question.batch * question.seq} --seq {question.seq}"
    micro = best.micro
    pieces = f" --microbatches {micro.count}" if micro.count > 1 else ""
    if best.num_stages > 1:
        pieces += f" --schedule {micro.schedule} --virtual {micro.virtual}"
    rest = f"--recipe {args.recipe} --remat {best.remat.name} --zero 1{pieces}"
    better = better_batch(question, best)
    suits = (
        f"rooflight plan train {args.model} --on {shlex.quote(args.on)}"
        f" --batch {better[0] * question.seq} --seq {question.seq}"
        f"   # this batch suits the slice: {better[1] - 1:.0%} more tokens a second"
        if better
        else ""
    )
    suggest(
        *filter(None, [suits]),
        f"rooflight explain {args.model} {where} {sizes}",
        f"rooflight fit {args.model} {where} {sizes} {rest}",
    )
