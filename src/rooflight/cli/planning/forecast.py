"""`rooflight forecast`: how long a step of your own layout will take, beside the planner's best."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rooflight.api.training import TrainingQuestion
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.plan import add_question, read_question
from rooflight.cli.planning.plan_questions import PlanCommand
from rooflight.cli.planning.why_not_page import candidate_document
from rooflight.dtypes import parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.interop.framework import Loss
from rooflight.interop.read import import_config
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Decision
from rooflight.plan.training.forecast.basis import blocks_of
from rooflight.plan.training.forecast.evidence import nearest_runs
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import parse_remat
from rooflight.plan.training.questions.why_not import WhyNot, verdict_on
from rooflight.plan.training.search.candidate import Candidate, Question, price_one
from rooflight.plan.training.search.constraint import LayoutConstraint, degrees_text
from rooflight.plan.training.search.plan import train_question
from rooflight.ui.answers.questions import compare_table, short_text
from rooflight.ui.answers.training import extrapolates, rests_on
from rooflight.ui.text.answer import table_text
from rooflight.units import format_count, format_seconds, format_si, parse_part

HELP = "seconds of a training step of your own layout, with interval, beside the planner's best"


def configure(parser: Parser) -> None:
    add_question(parser, is_whole=False)
    parser.add_argument(
        "--from",
        nargs="+",
        metavar="FILE",
        help="all of it from a launch script or configuration of Megatron-LM, MaxText or torchtitan"
        " (read, never run), then key=value words; MODEL where theirs is not known",
    )
    parser.add_argument(
        "--layout",
        metavar="DEGREES",
        help="tp=8@node,pp=16,vp=8,dp=128; remat=, microbatches= and schedule= too; the rest is"
        " chosen",
    )
    parser.add_argument("--brief", action="store_true", help="the answer in six lines, no table")
    parser.set_examples(
        "rooflight forecast llama3-70b --on h100:8x64 --layout tp=8@node,pp=4,vp=5,dp=16"
        " --batch 4Mi --seq 8192",
        "rooflight forecast llama3-8b --on v5e:16x16 --layout fsdp=256 --batch 4Mi --seq 4096",
    )


def run(args: Namespace) -> int:
    asked, found = _imported(args) if getattr(args, "from") else _asked(args)
    model, question = asked.training.model, asked.question
    mine = found.candidate
    if args.json:
        overlap = question.overlap
        document = {
            "model": model.name,
            "asked": found.wanted.text,
            "verdict": found.verdict,
            "because": found.because,
            "forecast": candidate_document(mine, overlap) if mine else None,
            "best": candidate_document(found.best, overlap),
        }
        print_json("forecast", document)
    else:
        show(_brief(mine, found) if args.brief and mine else _text(asked, question, found))
        suggest(
            f"rooflight plan train {shlex.quote(args.model or model.name)}"
            f" --on {shlex.quote(args.on)} --batch {question.batch * question.seq}"
            f" --seq {question.seq} --framework {question.framework.name}"
        )
    return 0 if mine and mine.memory.fits else 1


def _asked(args: Namespace) -> tuple[PlanCommand, WhyNot]:
    """Degrees, and what the command line says beside them."""
    require_words(args)
    asked = read_question(args)
    return asked, asked.training.why_not(args.layout, asked.planned().candidates[0])


def require_words(args: Namespace) -> None:
    """Raises where flags, and no file, leave out a part of what runs."""
    missing = [n for n in ("model", "on", "layout", "batch", "seq") if getattr(args, n) is None]
    if missing:
        name = "a model" if missing[0] == "model" else f"--{missing[0]}"
        raise UsageError(
            f"a forecast needs {name}", hint="or a launch script that says it all: --from train.sh"
        )


def _imported(args: Namespace) -> tuple[PlanCommand, WhyNot]:
    """A run as its own files describe it, its ranks where they put them."""
    training, mine = imported_run(args)
    asked = PlanCommand(args, training)
    wanted = LayoutConstraint(Path(getattr(args, "from")[0]).name, {})
    return asked, verdict_on(training.question, wanted, asked.planned().candidates[0], mine)


def imported_run(args: Namespace) -> tuple[TrainingQuestion, Candidate]:
    """What a launch script or configuration runs, and its own layout, priced."""
    given = [n for n in ("layout", "batch", "seq", "framework") if getattr(args, n) is not None]
    given += ["dtype"] if args.dtype != "bf16" else []
    if given:
        raise UsageError(f"--{given[0]} is in the file already", hint=f"leave --{given[0]} out")
    if args.on is None:
        raise UsageError("a file does not say the chips", hint="add --on, such as h100:8x16")
    model = load_model(args.model) if args.model else None
    read = import_config(getattr(args, "from"), on=parse_slice(args.on), model=model)
    question = train_question(
        *(model_graph(read.model), read.on, read.batch, read.seq, parse_dtype(read.dtype)),
        overlap=args.overlap,
        recipe=args.recipe or read.recipe,
        framework=read.framework.name,
        rank=args.rank,
        hbm_margin=parse_part(args.hbm_margin or "0", what="--hbm-margin"),
    )
    mine = price_one(
        question,
        parse_layout(read.layout),
        read.mesh,
        Microbatching(read.microbatches, read.schedule or "1f1b", read.virtual),
        parse_remat(read.remat, question.graph),
    )
    return TrainingQuestion(read.model, question, _lost(read.losses)), mine


def _lost(losses: Sequence[Loss]) -> tuple[Decision, ...]:
    return tuple(Decision("not read", x.what, x.because) for x in losses if x.is_material)


def _brief(mine: Candidate, found: WhyNot) -> str:
    """Time, memory, what binds, what the forecast rests on, the planner's best, what to change."""
    said, held, best = mine.forecast, mine.memory, found.best
    interval = f", 80 % between {format_seconds(said.low_s)} and {format_seconds(said.high_s)}"
    basis = f"{said.basis.text}, median held-out error {said.basis.calibration.median_error:.1%}"
    if mine.rank == "roofline":
        interval, basis = " at the roofline", "the catalog: no overheads, all hidden that can be"
    lines = {
        "step": f"{format_seconds(mine.step_s)}{interval}; MFU {mine.mfu:.1%}",
        "memory": f"{format_si(held.total_bytes, 'B')} of {format_si(held.hbm_bytes, 'B')} per"
        f" chip, {'fits' if held.fits else 'does not fit'}",
        "bound by": mine.binds,
        "rests on": basis,
        "best": f"{degrees_text(best)} takes {format_seconds(best.step_s)}",
        "to change": found.because,
    }
    return "\n".join(f"{name:<11}{words}" for name, words in lines.items())


def _text(asked: PlanCommand, question: Question, found: WhyNot) -> str:
    mine, best = found.candidate, found.best
    if mine is None:
        return f"{asked.subject}: {found.wanted.text} {found.verdict}: {found.because}"
    said, held = mine.forecast, mine.memory
    fits = "fits" if held.fits else "does not fit"
    lines = [
        f"{asked.subject}: {degrees_text(mine)} takes {format_seconds(mine.step_s)}, 80 % between"
        f" {format_seconds(said.low_s)} and {format_seconds(said.high_s)}, MFU {mine.mfu:.1%}",
        *(f"{c.what} {c.value}: {c.because}" for c in asked.training.choices),
        *(f"outside the search: {reason}" for reason in found.outside),
        f"memory: {format_si(held.total_bytes, 'B')} of {format_si(held.hbm_bytes, 'B')} per chip,"
        f" {fits}",
        *rests_on(mine),
        *_evidence(question, mine),
        f"the planner's best: {short_text(best)} ({best.step_s / mine.step_s:.3f} times as long)",
    ]
    if found.verdict not in ("wins", "ties"):
        lines.append(f"first to change: {found.because}")
    lines += [
        "",
        table_text(compare_table((found.wanted.text, "the planner's best"), (mine, best))),
    ]
    return "\n".join(lines)


def _evidence(question: Question, mine: Candidate) -> list[str]:
    """The measured runs nearest to a layout, and what of it none of them had."""
    runs = nearest_runs(mine.layout, mine.mesh, blocks_of(question.graph))
    near = ", ".join(f"{r.id} ({format_count(r.chips)} chips, {-r.residual:+.1%})" for r in runs)
    lines = [f"nearest measured runs, and how far their forecasts were off: {near}"] if runs else []
    return [*lines, *extrapolates(mine)]
