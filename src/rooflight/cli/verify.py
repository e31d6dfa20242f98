"""`rooflight verify`: the compiler's verdict on a plan, a served step, or any jitted function."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from rooflight.api.compiled import verify, verify_function
from rooflight.cli.compile_progress import compile_progress
from rooflight.cli.flags import add_choice, add_mesh, add_verbose
from rooflight.cli.hlo_page import grids
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.time_page import ROWS, step_page, time_line
from rooflight.cli.verify_page import (
    answer,
    comparison_document,
    comparison_text,
    document,
    expectation,
    expectation_document,
    tables,
)
from rooflight.cli.verify_program_page import program_document, program_text, write_program
from rooflight.compile.aot.run import read_compilation
from rooflight.compile.aot.target import device_chip
from rooflight.compile.findings.baseline import compare, read_baseline
from rooflight.compile.findings.verify import STAGES, Verdict, expected_of
from rooflight.errors import UsageError
from rooflight.plan.file.record import Plan, from_json, read_text
from rooflight.program.from_plan.served_step import ServedStep, is_fleet, step_of_fleet
from rooflight.ui.html.step import StepPage, step_html

HELP = "a plan or your own function, compiled for its slice without a chip: what is odd"

_EXAMPLE = files("rooflight.compile") / "example_plan.json"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "plan",
        nargs="?",
        help="a file of plan train or plan serve (--json), - for the standard input;"
        " if left out, what an example expects",
    )
    parser.add_argument(
        "--fn",
        metavar="MODULE:BUILD",
        help="verify a function of your own: BUILD(mesh) in package.module or file.py returns"
        " (function, abstract arguments)",
    )
    parser.add_argument("--on", metavar="SLICE", help="with --fn: the slice, v5p:8x8x8")
    add_mesh(parser)
    parser.add_argument(
        "--explicit",
        action="store_true",
        help="with --fn: axes are Explicit, as jax.make_mesh makes them; Auto if left out",
    )
    add_choice(
        parser,
        "--until",
        STAGES,
        what="stage",
        default=None,
        help="partitioned (default of a plan): collectives, in seconds; scheduled (default of"
        " --fn): memory too; executable: time too, in minutes",
    )
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="an earlier --json: exit 1 only if a collective or a gigabyte was added to it",
    )
    parser.add_argument(
        "--expect", action="store_true", help="only what the plan expects; nothing is compiled"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write the verdict and its schedule as one HTML page"
    )
    add_verbose(parser, help="every row of every table")
    parser.set_examples("rooflight verify", "rooflight verify --json")


def run(args: Namespace) -> int:
    if args.fn:
        return _run_program(args)
    _refuse(args, ["--on", "--mesh", "--explicit"], "is for --fn; a plan has its own")
    if args.plan is None or args.expect:
        return _run_expectation(args)
    plan = _read(args.plan)
    before = read_baseline(args.baseline) if args.baseline else None
    with compile_progress() as watch:
        verdict = verify(plan, until=args.until or "partitioned", watch=watch)
    if args.html:
        blocks = tables(verdict, everything=args.verbose, with_time=False)
        write_verdict(args.html, verdict, answer(verdict), blocks)
    found = _Found(document(verdict), bool(verdict.findings), verdict.failed is not None)
    text = "\n\n".join([answer(verdict), *tables(verdict, everything=args.verbose)])
    code = _show(args, found, text, before)
    if not args.json and verdict.memory is None:
        suggest(f"rooflight verify {args.plan} --until scheduled")
    return code


def _read(path: str) -> Plan | ServedStep:
    """A plan to train; or, of a fleet, the generate step of its replicas."""
    text = read_text(path)
    return step_of_fleet(text) if is_fleet(text) else from_json(text)


def _run_expectation(args: Namespace) -> int:
    _refuse(args, ["--baseline", "--html"], "needs a plan to compile")
    plan = _read(args.plan) if args.plan else from_json(_EXAMPLE.read_text())
    expected = expected_of(plan)
    if args.json:
        print_json("verify", expectation_document(plan, expected))
        return 0
    show(expectation(plan, expected, everything=args.verbose))
    if args.plan is None:
        command = "rooflight plan train llama3-8b --on v5e:4x4 --batch 64Ki --seq 4096"
        suggest(f"{command} --json > plan.json; rooflight verify plan.json")
    return 0


def _run_program(args: Namespace) -> int:
    if args.plan or args.expect:
        raise UsageError(
            "--fn verifies a function without a plan", hint="leave the plan and --expect out"
        )
    if args.on is None:
        raise UsageError(
            "--fn needs a slice to compile for", hint="add --on v5e:4x4, or any of rooflight chips"
        )
    before = read_baseline(args.baseline) if args.baseline else None
    with compile_progress() as watch:
        verdict = verify_function(
            args.fn,
            on=args.on,
            mesh=args.mesh,
            explicit=args.explicit,
            until=args.until or "scheduled",
            watch=watch,
        )
    text = program_text(verdict, everything=args.verbose)
    if args.html:
        write_program(args.html, verdict, text)
    is_odd, is_broken = bool(verdict.findings), verdict.failed is not None
    return _show(args, _Found(program_document(verdict), is_odd, is_broken), text, before)


@dataclass(frozen=True, slots=True)
class _Found:
    """A verdict as JSON, and what decides the exit code."""

    document: dict[str, object]
    is_odd: bool
    is_broken: bool


def _show(args: Namespace, found: _Found, text: str, before: dict[str, Any] | None) -> int:
    """Prints a verdict; with a baseline only what was added to it is a finding."""
    if before is None:
        if args.json:
            print_json("verify", found.document)
        else:
            show(text)
        return 1 if found.is_odd else 0
    comparison = compare(before, found.document)
    if args.json:
        print_json("verify", found.document | {"baseline": comparison_document(comparison)})
    else:
        show(f"{comparison_text(comparison, args.baseline)}\n\n{text}")
    return 1 if comparison.added or found.is_broken else 0


def _refuse(args: Namespace, flags: list[str], why: str) -> None:
    for flag in flags:
        if getattr(args, flag.removeprefix("--")):
            raise UsageError(f"{flag} {why}", hint=f"leave {flag} out")


def write_verdict(path: str, verdict: Verdict, answer: str, tables: list[str]) -> None:
    """Writes the page of a verdict to a file that the user named."""
    write_file(path, step_html(verdict_page(verdict, answer, tables)), flag="--html")


def verdict_page(verdict: Verdict, answer: str, tables: list[str]) -> StepPage:
    """What was said of a plan, and the last program that the compiler got through."""
    kicker = f"Verdict on plan {verdict.hash}"
    lines = answer.splitlines()
    texts = [("Verdict", text) for text in tables]
    title = f"{verdict.plan.model.title} on {verdict.plan.slice}"
    done = [one for one in verdict.done if one.outcome in ("compiled", "out of memory")]
    if not done:
        note = time_line(verdict.plan.time, None)
        return StepPage(title, kicker, tuple(lines), None, note, (), (), tuple(texts), None)
    step = read_compilation(done[-1])
    device = device_chip(verdict.plan.placed(), done[-1].axes)
    usable = device.detail.get("hbm_usable_bytes")
    return step_page(
        step,
        kicker=f"{kicker}, compiled until {done[-1].request.until}",
        answer=lines,
        shown=grids(step, most=ROWS),
        texts=texts,
        planned=verdict.plan.time,
        time=verdict.time,
        limit_bytes=int(usable) if usable else None,
        title=title,
    )
