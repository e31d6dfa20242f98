"""The questions after the plan: one flag each, parsed, asked of the library, rendered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rooflight.api.training import TrainingQuestion
from rooflight.cli.flags import one_of
from rooflight.cli.output import write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.budget_page import run_cost_document, run_cost_text
from rooflight.cli.planning.why_not_page import (
    flips_document,
    pareto_document,
    scaling_document,
    sensitivity_document,
    smallest_document,
    what_if_document,
    why_not_document,
)
from rooflight.cli.progress import progress
from rooflight.errors import UsageError
from rooflight.plan.training.questions.flips import flips
from rooflight.plan.training.questions.run_cost import run_cost
from rooflight.plan.training.questions.scaling import KINDS, pareto, scale, smallest_slice
from rooflight.plan.training.questions.what_if import (
    KNOBS,
    parse_changes,
    sensitivity,
    what_if,
)
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.run import Search
from rooflight.plan.training.search.slices import largest_slice
from rooflight.ui.answer import Answer
from rooflight.ui.answers.questions import (
    flips_answer,
    pareto_answer,
    scaling_answer,
    sensitivity_answer,
    smallest_answer,
    what_if_answer,
    why_not_answer,
)
from rooflight.ui.answers.training import plan_answer
from rooflight.ui.text.answer import answer_text
from rooflight.units import format_count, parse_count, parse_seconds

_MOST_TOKENS = 10**18
_SIZES = 24  # about as many sizes as a walk along the batch tries
_NEEDS = {"svg": "scaling", "step_time": "solve", "checkpoint_s": "tokens", "restart_s": "tokens"}


def add_questions(parser: Parser) -> None:
    """The flags, in a group of their own."""
    group = parser.add_argument_group("questions after the plan, one at a time")
    add = group.add_argument
    add("--why-not", metavar="DEGREES", help="why not tp=16, fsdp=64,tp=8, pp=4 or remat=none")
    add(
        "--flips",
        nargs="?",
        const="batch",
        type=one_of("size", ("batch", "seq")),
        choices=("batch", "seq"),
        help="the batch (or seq) at which another layout wins, within 16 times",
    )
    names = ", ".join(KNOBS)
    add("--what-if", metavar="RATES", help=f"another chip: ici=2x,latency=0. Rates: {names}")
    add("--sensitivity", action="store_true", help="what 10 %% more of each rate does")
    add(
        "--scaling",
        type=one_of("scaling", KINDS),
        choices=KINDS,
        help="from one host to the slice: the same batch (strong), or tokens per chip (weak)",
    )
    add("--pareto", action="store_true", help="slices that none beats in time, chips and dollars")
    add(
        "--solve",
        type=one_of("unknown", ("chips",)),
        choices=("chips",),
        help="the smallest slice that fits (see --step-time); --on CHIP looks up to a whole pod",
    )
    add("--tokens", metavar="COUNT", help="days, dollars, failures of a whole run: 15T")
    more = parser.add_argument_group("details of these")
    more.add_argument("--svg", metavar="FILE", help="with --scaling: write the curve as a picture")
    more.add_argument("--step-time", metavar="SECONDS", help="with --solve: the longest step")
    more.add_argument(
        "--checkpoint-s", metavar="SECONDS", help="with --tokens: a checkpoint stops the run for"
    )
    more.add_argument(
        "--restart-s", metavar="SECONDS", help="with --checkpoint-s: to start again after a failure"
    )


@dataclass(frozen=True, slots=True)
class PlanCommand:
    """A command line, understood as far as all questions have it in common."""

    args: Namespace
    training: TrainingQuestion

    @property
    def title(self) -> str:
        return self.training.model.title

    @property
    def question(self) -> Question:
        return self.training.question

    @property
    def subject(self) -> str:
        """What an answer is about."""
        q = self.question
        return f"{self.title} on {q.on}, {format_count(q.batch * q.seq)} tokens per step"

    def planned(self, count: int = 1) -> Search:
        with progress("templates", "layouts priced") as watch:
            return self.training.search(count=count, watch=watch)


@dataclass(frozen=True, slots=True)
class Printout:
    """What to print, as an answer or its text and as JSON, and the exit code."""

    said: Answer | str
    document: Mapping[str, object]
    exit_code: int = 0

    @property
    def text(self) -> str:
        return self.said if isinstance(self.said, str) else answer_text(self.said)


def asked_question(args: Namespace) -> str | None:
    """Which question a command line asks; several, or details of another one, are refused."""
    names = [name for name in _ANSWERS if getattr(args, name) not in (None, False)]
    if len(names) > 1:
        flags = " and ".join(_flag(name) for name in names)
        raise UsageError(f"{flags} are separate questions", hint="ask one at a time")
    for name, needs in _NEEDS.items():
        if getattr(args, name) is not None and names != [needs]:
            raise UsageError(
                f"{_flag(name)} belongs to {_flag(needs)}", hint="add that, or drop it"
            )
    if args.restart_s is not None and args.checkpoint_s is None:
        raise UsageError("--restart-s needs --checkpoint-s", hint="give both: 60 and 300")
    return names[0] if names else None


def answer(name: str, asked: PlanCommand) -> Printout:
    """Asks one question."""
    q = asked.question
    reply = _ANSWERS[name](asked)
    about = {"on": str(q.on), "batch": q.batch, "seq": q.seq, "dtype": q.dtype.name}
    return replace(reply, document=about | dict(reply.document))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _why_not(asked: PlanCommand) -> Printout:
    q = asked.question
    found = asked.training.why_not(asked.args.why_not, asked.planned().candidates[0])
    runs = found.verdict not in ("does not fit", "does not divide")
    said = why_not_answer(asked.subject, found)
    return Printout(said, why_not_document(found, q.overlap), 0 if runs else 1)


def _flips(asked: PlanCommand) -> Printout:
    q, best = asked.question, asked.planned().candidates[0]
    with progress("sizes", "planned") as watch:
        found = flips(
            q, best, along=asked.args.flips, watch=lambda n: watch(min(n, _SIZES), _SIZES, n)
        )
    return Printout(flips_answer(asked.subject, found), flips_document(found, q.overlap))


def _what_if(asked: PlanCommand) -> Printout:
    q = asked.question
    factors = parse_changes(asked.args.what_if, q.on.chip)
    found = what_if(q, factors, asked.planned().candidates[0])
    said = what_if_answer(asked.subject, found)
    return Printout(said, what_if_document(found, q.overlap), 0 if found.after else 1)


def _sensitivity(asked: PlanCommand) -> Printout:
    q = asked.question
    found = sensitivity(q, asked.planned().candidates[0])
    return Printout(
        sensitivity_answer(asked.subject, found), sensitivity_document(found, q.overlap)
    )


def _scaling(asked: PlanCommand) -> Printout:
    with progress("slices", "planned") as watch:
        kind = asked.args.scaling
        curve = scale(asked.question, kind, watch=lambda n, total: watch(n, total, n))
    said = scaling_answer(asked.title, curve)
    if asked.args.svg and curve.has_points:
        write_file(asked.args.svg, said.pictures[0].svg, flag="--svg")
    return Printout(said, scaling_document(curve), 0 if curve.has_points else 1)


def _pareto(asked: PlanCommand) -> Printout:
    with progress("slices", "planned") as watch:
        curve = scale(asked.question, "strong", watch=lambda n, total: watch(n, total, n))
    front = pareto(curve.points)
    planned = sum(p.best is not None for p in curve.points)
    said = pareto_answer(asked.title, front, planned)
    return Printout(said, pareto_document(front, planned), 0 if front else 1)


def _solve(asked: PlanCommand) -> Printout:
    q, limit = asked.question, asked.args.step_time
    if q.on.num_chips == 1:
        q = replace(q, on=largest_slice(q.on.chip))
    with progress("slices", "planned") as watch:
        limit_s = None if limit is None else parse_seconds(limit, what="--step-time")
        found = smallest_slice(q, limit_s=limit_s, watch=lambda n, total: watch(n, total, n))
    title = f"{asked.title}, {format_count(q.batch * q.seq)} tokens per step,"
    return Printout(
        smallest_answer(title, found), smallest_document(found), 0 if found.answer else 1
    )


def _tokens(asked: PlanCommand) -> Printout:
    tokens = parse_count(asked.args.tokens, what="--tokens")
    if not 1 <= tokens <= _MOST_TOKENS:
        raise UsageError(f"--tokens must be of a run, got {asked.args.tokens}", hint="write 15T")
    write, restart = asked.args.checkpoint_s, asked.args.restart_s
    found = asked.planned(count=8)
    cost = run_cost(
        asked.question,
        found.candidates[0],
        tokens,
        write_s=None if write is None else parse_seconds(write, what="--checkpoint-s"),
        restart_s=None if restart is None else parse_seconds(restart, what="--restart-s"),
    )
    page = answer_text(plan_answer(asked.title, asked.question, found, asked.training.choices))
    return Printout(f"{page}\n\n{run_cost_text(cost)}", run_cost_document(cost))


_ANSWERS: Mapping[str, Callable[[PlanCommand], Printout]] = {
    "why_not": _why_not,
    "flips": _flips,
    "what_if": _what_if,
    "sensitivity": _sensitivity,
    "scaling": _scaling,
    "pareto": _pareto,
    "solve": _solve,
    "tokens": _tokens,
}
