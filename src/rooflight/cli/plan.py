"""`rooflight plan train`: the fastest layouts that fit, and why."""

import shlex
from dataclasses import replace

from rooflight.api.training import training_question
from rooflight.cli.flags import add_choice, add_dtype, add_on, keywords
from rooflight.cli.model import warn_of_gaps
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.plan_flags import require_flags, swept
from rooflight.cli.plan_questions import PlanCommand, add_questions, answer, asked_question
from rooflight.cli.plan_report import write_report
from rooflight.cli.plan_verify import Shortlist, require_verify, verify_search
from rooflight.errors import UsageError
from rooflight.plan.file.record import to_json
from rooflight.plan.training.memory.framework import PLANNED
from rooflight.plan.training.memory.recipe import RECIPES
from rooflight.plan.training.search.candidate import RANKS, Candidate, Question
from rooflight.plan.training.search.plan import better_batch
from rooflight.plan.training.search.run import Search
from rooflight.plan.training.time.stage_time import OVERLAPS
from rooflight.ui.answers.training import plan_answer
from rooflight.ui.text.answer import answer_text
from rooflight.units import whole

_SHOWN = 8  # layouts
_DEFAULTS = {
    "dtype": "bf16",
    "recipe": None,
    "overlap": "sum",
    "framework": None,
    "rank": "forecast",
    "hbm_margin": None,
    "layout": None,
}
_OF_A_PLAN = {
    "--layout": "is of a plan; --why-not asks about it",
    "--html": "is the page of a plan",
    "--verify": "compiles a plan",
    "--flags": "compiles a plan",
}
HELP = "the fastest layouts that fit on a slice, what binds each, and why"


def add_question(parser: Parser, *, is_whole: bool = True) -> None:
    """What is trained, on what, and by whose rules: shared with the verb forecast.

    Where it need not be whole, a file may say the rest.
    """
    parser.add_argument(
        "model",
        nargs=None if is_whole else "?",
        help="a preset such as llama3-70b, or a config.json",
    )
    add_on(parser)
    parser.add_argument("--batch", required=is_whole, metavar="TOKENS", help="tokens per step: 4Mi")
    parser.add_argument(
        "--seq", required=is_whole, metavar="TOKENS", help="tokens per sequence: 4k"
    )
    add_dtype(parser)
    add_choice(
        parser,
        "--recipe",
        tuple(RECIPES),
        what="recipe",
        default=None,
        help="what is stored of a parameter, by its bytes (default: as the framework does)",
    )
    add_choice(
        parser,
        "--framework",
        PLANNED,
        what="framework",
        default=None,
        help="whose schedules, memory and speed (default: megatron on GPUs, rooflight elsewhere)",
    )
    add_choice(
        parser,
        "--rank",
        RANKS,
        what="rank",
        default=_DEFAULTS["rank"],
        help="by what layouts are ranked: the forecast, or the book's roofline",
    )
    parser.add_argument(
        "--hbm-margin",
        metavar="PART",
        default=None,
        help="the part of HBM to leave free (default: 8%%; 0 with --rank roofline)",
    )
    add_choice(
        parser,
        "--overlap",
        OVERLAPS,
        what="overlap",
        default=_DEFAULTS["overlap"],
        help="collectives of different mesh axes queue up (sum) or run side by side (max)",
    )


def configure(parser: Parser) -> None:
    add_question(parser)
    parser.add_argument(
        "--layout",
        metavar="DEGREES",
        help="plan this one: tp=8,pp=4,dp=4 or axes on tiers; what it leaves out is chosen",
    )
    parser.add_argument("--html", metavar="FILE", help="also write the plan as one HTML page")
    parser.add_argument(
        "--verify",
        metavar="COUNT",
        help="compile the first COUNT layouts for the slice, and rank those that stand first",
    )
    parser.add_argument(
        "--flags",
        action="store_true",
        help="compile the first layout to the end with each of a few sets of compiler options,"
        " minutes each: which make its schedule shorter",
    )
    add_questions(parser)
    parser.set_examples(
        "rooflight plan train llama3-8b --on v5e:4x4 --batch 64Ki --seq 4096",
        "rooflight plan train llama3-8b --on v5e:4x4 --batch 64Ki --seq 4096 --why-not pp=4",
        "rooflight plan train llama3-70b --on v5p:16x20x28 --batch 4587520 --seq 4096",
    )


def run(args: Namespace) -> int:
    name = asked_question(args)
    asked = read_question(args)
    question = asked.question
    for flag, what in _OF_A_PLAN.items():
        if name and getattr(args, flag.removeprefix("--")):
            hint = f"leave out --{name.replace('_', '-')} or {flag}"
            raise UsageError(f"{flag} {what}", hint=hint)
    if name:
        reply = answer(name, asked)
        if args.json:
            print_json("plan", {"model": asked.training.model.name, **reply.document})
        else:
            show(reply.text)
        return reply.exit_code
    if args.layout:
        asked = replace(asked, training=asked.training.within(args.layout))
        question = asked.question
    count = whole("--verify", args.verify, most=_SHOWN) if args.verify else 0
    if args.flags:
        require_flags(question)
    if count or args.flags:
        require_verify(question)
    found = asked.planned(count=_SHOWN)
    verified = verify_search(asked.training, found, count) if count else None
    return _show(asked, verified.found if verified else found, verified)


def _show(asked: PlanCommand, found: Search, verified: Shortlist | None) -> int:
    """Prints a plan; with the compiler asked, the exit code says whether the first one passes."""
    args, training = asked.args, asked.training
    code = 0 if verified is None or verified.does_stand else 1
    plan = verified.record(training) if verified else training.record(found)
    plan, options = swept(plan) if args.flags else (plan, "")
    if args.html:
        write_report(args.html, training.model, training.question, found, plan)
    if args.json:
        print(to_json(plan), end="")
        return code
    column = verified.column if verified else []
    shown = plan_answer(asked.title, training.question, found, training.choices, column)
    show(answer_text(shown))
    for words in (verified.words if verified else "", options):
        if words:
            show(words)
    _suggest(args, training.question, found.candidates[0])
    return code


def read_question(args: Namespace) -> PlanCommand:
    """What the command line asks; gaps of the model are named."""
    training = training_question(args.model, **keywords(training_question, args))
    warn_of_gaps(training.model)
    return PlanCommand(args, training)


def _suits(question: Question, best: Candidate, batch: int, other: Candidate) -> str:
    gain = (batch / other.step_s) / (question.batch / best.step_s) - 1
    like = ", by a layout like measured ones" if best.unseen and not other.unseen else ""
    return f"this batch suits the slice: {gain:+.0%} tokens per second{like}"


def _suggest(args: Namespace, question: Question, best: Candidate) -> None:
    model = shlex.quote(args.model)
    where = f"--layout {best.layout.text} --on {shlex.quote(args.on)} --mesh {best.mesh}"
    sizes = f"--batch {question.batch * question.seq} --seq {question.seq}"
    micro = best.micro
    shown = f" --microbatches {micro.count}" if micro.count > 1 else ""
    if best.num_stages > 1:
        shown += f" --schedule {micro.schedule} --virtual {micro.virtual}"
    rest = (
        f"--recipe {question.recipe.name} --remat {best.remat.name} --zero 1"
        f" --framework {question.framework.name}{shown}"
    )
    better = better_batch(question, best)
    suits = (
        f"rooflight plan train {model} --on {shlex.quote(args.on)}"
        f" --batch {better[0] * question.seq} --seq {question.seq}{_changed(args)}"
        f"   # {_suits(question, best, *better)}"
        if better
        else ""
    )
    suggest(
        *filter(None, [suits]),
        f"rooflight explain train {model} {where} {sizes}{_changed(args, 'dtype')}",
        f"rooflight fit train {model} {where} {sizes} {rest}",
    )


def _changed(args: Namespace, *names: str) -> str:
    """The flags of the question that are not as by default, as the next command needs them."""
    given = {name: getattr(args, name) for name in names or _DEFAULTS}
    changed = ((n, value) for n, value in given.items() if value != _DEFAULTS[n])
    return "".join(f" --{n.replace('_', '-')} {value}" for n, value in changed)
