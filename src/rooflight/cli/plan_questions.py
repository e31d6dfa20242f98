"""The questions after the plan: one flag each, parsed, asked of the library, rendered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rooflight.api.training import TrainingQuestion
from rooflight.cli.budget_page import run_cost_document, run_cost_text
from rooflight.cli.flags import one_of
from rooflight.cli.output import write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.why_not_page import (
    candidate_document,
    compare,
    flips_document,
    flips_text,
    pareto_document,
    pareto_text,
    scaling_document,
    scaling_text,
    short_text,
    smallest_document,
    smallest_text,
    why_not_document,
    why_not_text,
)
from rooflight.errors import UsageError
from rooflight.plan.training.questions.flips import flips
from rooflight.plan.training.questions.run_cost import run_cost
from rooflight.plan.training.questions.scaling import KINDS, pareto, scale, smallest_slice
from rooflight.plan.training.questions.what_if import (
    KNOBS,
    WhatIf,
    parse_changes,
    sensitivity,
    what_if,
)
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.constraint import degrees_text
from rooflight.plan.training.search.run import Search
from rooflight.plan.training.search.slices import largest_slice
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.ui.answers.training import plan_answer
from rooflight.ui.browser.plan_pictures import scaling_picture
from rooflight.ui.text.answer import answer_text
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds, parse_count, parse_seconds

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
    """What to print, as text and as JSON, and the exit code."""

    text: str
    document: Mapping[str, object]
    exit_code: int = 0


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
    text = why_not_text(asked.subject, found, q.overlap)
    return Printout(text, why_not_document(found, q.overlap), 0 if runs else 1)


def _flips(asked: PlanCommand) -> Printout:
    q, best = asked.question, asked.planned().candidates[0]
    with progress("sizes", "planned") as watch:
        found = flips(
            q, best, along=asked.args.flips, watch=lambda n: watch(min(n, _SIZES), _SIZES, n)
        )
    return Printout(flips_text(asked.subject, found), flips_document(found, q.overlap))


def _what_if(asked: PlanCommand) -> Printout:
    q = asked.question
    factors = parse_changes(asked.args.what_if, q.on.chip)
    found = what_if(q, factors, asked.planned().candidates[0])
    text = what_if_text(asked.subject, found, q.overlap)
    return Printout(text, what_if_document(found, q.overlap), 0 if found.after else 1)


def _sensitivity(asked: PlanCommand) -> Printout:
    q = asked.question
    found = sensitivity(q, asked.planned().candidates[0])
    return Printout(
        sensitivity_text(asked.subject, found, q.overlap), sensitivity_document(found, q.overlap)
    )


def _scaling(asked: PlanCommand) -> Printout:
    with progress("slices", "planned") as watch:
        kind = asked.args.scaling
        curve = scale(asked.question, kind, watch=lambda n, total: watch(n, total, n))
    if asked.args.svg and curve.has_points:
        write_file(asked.args.svg, scaling_picture(asked.title, curve), flag="--svg")
    return Printout(
        scaling_text(asked.title, curve), scaling_document(curve), 0 if curve.has_points else 1
    )


def _pareto(asked: PlanCommand) -> Printout:
    with progress("slices", "planned") as watch:
        curve = scale(asked.question, "strong", watch=lambda n, total: watch(n, total, n))
    front = pareto(curve.points)
    planned = sum(p.best is not None for p in curve.points)
    text = pareto_text(asked.title, front, planned)
    return Printout(text, pareto_document(front, planned), 0 if front else 1)


def _solve(asked: PlanCommand) -> Printout:
    q, limit = asked.question, asked.args.step_time
    if q.on.num_chips == 1:
        q = replace(q, on=largest_slice(q.on.chip))
    with progress("slices", "planned") as watch:
        limit_s = None if limit is None else parse_seconds(limit, what="--step-time")
        found = smallest_slice(q, limit_s=limit_s, watch=lambda n, total: watch(n, total, n))
    title = f"{asked.title}, {format_count(q.batch * q.seq)} tokens per step,"
    return Printout(smallest_text(title, found), smallest_document(found), 0 if found.answer else 1)


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


def what_if_text(title: str, answer: WhatIf, overlap: Overlap) -> str:
    """The new step time, then both plans term by term."""
    factors = ", ".join(f"{name} x {factor:g}" for name, factor in answer.factors.items())
    before, after = answer.before, answer.after
    if after is None or answer.change is None:
        return (
            f"{title} with {factors}: nothing fits any more\nbefore: {short_text(before, overlap)}"
        )
    times = [format_seconds(c.step_s) for c in (before, after)]
    return "\n".join(
        [
            f"{title} with {factors}: {times[0]} -> {times[1]} per step,"
            f" {answer.change:.3f} times as long",
            f"before: {short_text(before, overlap)}",
            f"after:  {short_text(after, overlap)}",
            "",
            compare(("after", "before"), (after, before), overlap),
        ]
    )


def what_if_document(answer: WhatIf, overlap: Overlap) -> dict[str, object]:
    return {
        "question": "what-if",
        "factors": dict(answer.factors),
        "change": answer.change,
        "before": candidate_document(answer.before, overlap),
        "after": candidate_document(answer.after, overlap) if answer.after else None,
    }


def sensitivity_text(title: str, answers: Sequence[WhatIf], overlap: Overlap) -> str:
    """A row for each rate: what a tenth more of it does to the step."""
    before = answers[0].before
    moved = [a for a in answers if a.change and abs(a.change - 1) > 1e-6]
    most = next(iter(moved), None)
    binds = f"{_name(most)} moves the step most" if most else "no rate alone moves the step"
    rows = [(_name(a), KNOBS[_name(a)].help, _percent(a), _layout(a)) for a in answers]
    header = ("10 % more", "what it is", "step time", "layout")
    return "\n".join(
        [
            f"{title}: {binds}",
            f"the plan: {short_text(before, overlap)}",
            "",
            table(header, rows, align="llrl"),
            "",
            "each row is planned anew; a rate that is hidden behind another moves nothing",
        ]
    )


def _name(answer: WhatIf) -> str:
    return next(iter(answer.factors))


def _percent(answer: WhatIf) -> str:
    if answer.change is None:
        return "does not fit"
    part = answer.change - 1
    return "-" if abs(part) < 1e-6 else f"{part:+.2%}"


def _layout(answer: WhatIf) -> str:
    """The new layout, if it is another."""
    if answer.after is None or answer.after.degrees == answer.before.degrees:
        return "the same"
    return degrees_text(answer.after)


def sensitivity_document(answers: Sequence[WhatIf], overlap: Overlap) -> dict[str, object]:
    return {
        "question": "sensitivity",
        "before": candidate_document(answers[0].before, overlap),
        "rates": [
            {
                "rate": _name(a),
                "factor": a.factors[_name(a)],
                "change": a.change,
                "after": candidate_document(a.after, overlap) if a.after else None,
            }
            for a in answers
        ],
    }
