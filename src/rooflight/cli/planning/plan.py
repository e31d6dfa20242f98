"""`rooflight plan train`: the fastest layouts that fit, and why."""

import shlex
from dataclasses import dataclass, replace

from rooflight.api.training import TrainingQuestion, training_question
from rooflight.cli.flags import add_choice, add_dtype, add_on, keywords
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.cli.planning.plan_questions import PlanCommand, add_questions, answer, asked_question
from rooflight.cli.planning.plan_report import write_report
from rooflight.cli.program.compile_progress import compile_progress
from rooflight.compile.aot.environment import compiler_versions, require_compiler
from rooflight.compile.aot.flags import Sweep, Tried, sweep_flags
from rooflight.compile.aot.run import Watch
from rooflight.compile.findings.verify import NOT_ASKED, LayoutVerdict, order, stand
from rooflight.errors import UsageError
from rooflight.plan.file.record import COMPILER_OPTIONS, Decision, Plan, to_json
from rooflight.plan.training.memory.framework import PLANNED, default_framework
from rooflight.plan.training.memory.job import RECIPES
from rooflight.plan.training.search.candidate import RANKS, Candidate, Question
from rooflight.plan.training.search.constraint import asked_text, placed_text
from rooflight.plan.training.search.plan import better_batch
from rooflight.plan.training.search.run import Search
from rooflight.plan.training.time.stage_time import OVERLAPS
from rooflight.ui.answers.training import plan_answer
from rooflight.ui.text.answer import answer_text
from rooflight.units import format_seconds, format_si, whole

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
    add_on(parser, is_needed=is_whole)
    parser.add_argument("--batch", required=is_whole, metavar="TOKENS", help="tokens per step: 4Mi")
    parser.add_argument(
        "--seq", required=is_whole, metavar="TOKENS", help="tokens per sequence: 4k"
    )
    add_dtype(parser)
    add_choice(
        parser,
        "--recipe",
        tuple(RECIPES),
        help="what is stored of a parameter, by its bytes (default: as the framework does)",
    )
    add_choice(
        parser,
        "--framework",
        PLANNED,
        help="whose schedules, memory and speed (default: megatron on GPUs, rooflight elsewhere)",
    )
    add_choice(
        parser,
        "--rank",
        RANKS,
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


@dataclass(frozen=True, slots=True)
class Shortlist:
    """A search in the order that the compiler leaves, and what it said of each layout."""

    found: Search
    verdicts: tuple[LayoutVerdict, ...]  # of `found.candidates`
    compiler: str

    @property
    def does_stand(self) -> bool:
        return self.verdicts[0].word == "passes"

    @property
    def column(self) -> list[str]:
        """A cell for each row of the plan's table."""
        return [_cell(one) for one in self.verdicts]

    @property
    def words(self) -> str:
        """What was asked, what came of it, and every layout that does not stand."""
        asked = [one for one in self.verdicts if one is not NOT_ASKED]
        good = sum(one.word == "passes" for one in asked)
        seconds = sum(one.seconds for one in asked)
        lines = [
            f"compiled: {good} of {len(asked)} pass: collectives as planned, the schedule fits"
            f" ({self.compiler}, {seconds:.0f} s); their times were not asked for"
        ]
        lines += [
            f"{place} {one.because}" for place, one in enumerate(self.verdicts, 1) if one.findings
        ]
        if self.verdicts[0] is NOT_ASKED:
            lines.append(f"1 was not compiled; to ask of all: --verify {len(self.verdicts)}")
        return "\n".join(lines)

    def record(self, training: TrainingQuestion) -> Plan:
        """The plan of the first layout; the verdicts are its choices and its alternatives."""
        plan = training.record(self.found)
        best, *rest = self.verdicts
        why = (
            f"the fastest that passes when compiled ({self.compiler})"
            if self.does_stand
            else f"nothing that was compiled passes ({self.compiler}); this one: {best.because}"
        )
        kept = [replace(c, because=why) if c.what == "layout" else c for c in plan.choices]
        others = [
            other if one is NOT_ASKED else replace(other, because=f"{one.because}; {other.because}")
            for other, one in zip(plan.alternatives, rest, strict=True)
        ]
        return replace(plan, choices=tuple(kept), alternatives=tuple(others))


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
    model, on = shlex.quote(args.model), shlex.quote(args.on)
    sizes = f"--on {on} --batch {question.batch * question.seq} --seq {question.seq}"
    is_usual = question.framework.name == default_framework(question.on.chip).name
    framework = "" if is_usual else f" --framework {question.framework.name}"
    better = better_batch(question, best)
    suits = (
        f"rooflight plan train {model} --on {on}"
        f" --batch {better[0] * question.seq} --seq {question.seq}{_changed(args)}"
        f"   # {_suits(question, best, *better)}"
        if better
        else ""
    )
    suggest(
        *filter(None, [suits]),
        f"rooflight explain train {model} {sizes} --layout {placed_text(best)}"
        f"{_changed(args, 'dtype')}",
        f"rooflight fit train {model} {sizes} --layout {asked_text(best)}"
        f"{_changed(args, 'recipe')}{framework}",
    )


def _changed(args: Namespace, *names: str) -> str:
    """The flags of the question that are not as by default, as the next command needs them."""
    given = {name: getattr(args, name) for name in names or _DEFAULTS}
    changed = ((n, value) for n, value in given.items() if value != _DEFAULTS[n])
    return "".join(f" --{n.replace('_', '-')} {value}" for n, value in changed)


def require_flags(question: Question) -> None:
    """Fails before the search where no time could be composed."""
    if question.on.chip.kind == "gpu":
        raise UsageError(
            f"no compiler options are known for {question.on.chip.title}",
            hint="leave --flags out, or plan for TPUs",
        )


def swept(plan: Plan) -> tuple[Plan, str]:
    """The plan with the options that help as its choices, and the same in words."""
    with compile_progress() as watch:
        found = sweep_flags(plan, watch=watch)
    chosen = [
        Decision(COMPILER_OPTIONS, one.text, _because(found, one)) for one in found.helping[:1]
    ]
    return replace(plan, choices=(*plan.choices, *chosen)), _words(found)


def _words(found: Sweep) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    if found.default_s is None:
        return f"compiler options were not tried: the compiler: {found.tried[0].outcome}"
    start = f"compiled step: {format_seconds(found.default_s)} with the compiler's own options"
    asked = f"({versions}; estimated, not measured)"
    if not found.helping:
        return f"{start}; none of {len(found.tried) - 1} others saves 1 % {asked}"
    lines = [f"{start} {asked}; less with"]
    lines += [f"  {_saved(found, one)}  {one.name}: {one.text}" for one in found.helping]
    return "\n".join(lines)


def _saved(found: Sweep, one: Tried) -> str:
    assert one.seconds is not None and found.default_s is not None, "it helps"
    share = 1 - one.seconds / found.default_s
    return f"{format_seconds(one.seconds)} (-{share:.0%})"


def _because(found: Sweep, one: Tried) -> str:
    assert found.default_s is not None, "it helps"
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    default = format_seconds(found.default_s)
    return f"{one.name}: {_saved(found, one)} instead of {default} by the estimates of {versions}"


def require_verify(question: Question) -> None:
    """Fails before the search where nothing could be compiled after it."""
    require_compiler("gpu" if question.on.chip.kind == "gpu" else "tpu")


def verify_search(training: TrainingQuestion, found: Search, count: int) -> Shortlist:
    """Compiles the first `count` layouts of a search and ranks all again."""
    firsts = found.candidates[:count]
    plans = [training.record(replace(found, candidates=(c,))) for c in firsts]
    with compile_progress() as watch:
        said = stand(plans, watch_of=lambda place: _labelled(watch, place, len(plans)))
    verdicts = [*said, *[NOT_ASKED] * (len(found.candidates) - len(said))]
    places = order(verdicts)
    return Shortlist(
        replace(found, candidates=tuple(found.candidates[place] for place in places)),
        tuple(verdicts[place] for place in places),
        _compiler(training.question),
    )


def _labelled(watch: Watch, place: int, count: int) -> Watch:
    def tell(which: int, phase: str, seconds: float) -> None:
        watch(which, f"layout {place + 1} of {count}: {phase}", seconds)

    return tell


def _compiler(question: Question) -> str:
    versions = compiler_versions("gpu" if question.on.chip.kind == "gpu" else "tpu")
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _cell(one: LayoutVerdict) -> str:
    if one.word == "findings":
        return f"{len(one.findings)} finding{'s' if len(one.findings) > 1 else ''}"
    size = f", {format_si(one.memory_bytes, 'B')}" if one.memory_bytes else ""
    return "-" if one is NOT_ASKED else f"{one.word}{size}"
