"""`rooflight verify`: the compiler's verdict on a plan, a served step, or any jitted function."""

from dataclasses import asdict
from importlib.resources import files

from rooflight.api.compiled import verify, verify_function
from rooflight.cli.flags import add_choice, add_mesh, add_verbose
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.program.compile_progress import compile_progress
from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.findings.baseline import compare, compare_compilers, read_baseline
from rooflight.compile.findings.document import comparison_document, known_of, verdict_document
from rooflight.compile.findings.subject import subject_of
from rooflight.compile.findings.verify import STAGES, Verdict
from rooflight.errors import UsageError
from rooflight.plan.file.record import Plan, from_json, read_text
from rooflight.program.from_plan.served_step import ServedStep, is_fleet, step_of_fleet
from rooflight.ui.answers.compiled import FEW_ROWS
from rooflight.ui.answers.verdict import comparison_answer, expected_answer, verdict_answer
from rooflight.ui.html.compiled import verdict_page
from rooflight.ui.text.answer import answer_text

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
        help="partitioned (default of a plan): collectives, in seconds; scheduled (default of"
        " --fn): memory too; executable: time too, in minutes",
    )
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="an earlier --json: exit 1 only if a collective or a gigabyte was added to it",
    )
    parser.add_argument(
        "--compiler",
        metavar="PYTHON",
        action="append",
        help="compile with the jax, and libtpu or CUDA plugin, of another environment (its folder"
        " or its python); a second one is held against the first: exit 1 only if it is worse",
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
    if not args.fn:
        _refuse(args, ["--on", "--mesh", "--explicit"], "is for --fn; a plan has its own")
        if args.plan is None or args.expect:
            return _run_expectation(args)
    *others, compiler = args.compiler or [""]
    if len(others) + bool(args.baseline) > 1:
        raise UsageError(
            "a verdict is held against one other",
            hint="give --compiler once or twice, or once with --baseline",
        )
    before = read_baseline(args.baseline) if args.baseline else None
    against = args.baseline
    for other in others:
        first = _compared(args, other)
        before = verdict_document(first)
        against = f"{other} ({', '.join(map(' '.join, first.done[0].versions.items()))})"
    verdict = _compared(args, compiler) if others else _verdict(args, compiler)
    if args.html:
        write_file(args.html, verdict_page(verdict), flag="--html")
    document, compared = verdict_document(verdict), None
    if before is not None:
        compared = (compare_compilers if others else compare)(before, document)
        document |= {"baseline": comparison_document(compared)}
    if args.json:
        print_json("verify", document)
    else:
        said = answer_text(verdict_answer(known_of(verdict), most=_most(args)))
        held = comparison_answer(compared, against) if compared else None
        show(f"{answer_text(held)}\n\n{said}" if held else said)
        if not args.fn and verdict.memory is None:
            suggest(f"rooflight verify {args.plan} --until scheduled")
    if compared:  # only what was added is a finding
        return 1 if compared.added or verdict.failed else 0
    return 1 if verdict.findings else 0


def _compared(args: Namespace, compiler: str) -> Verdict | ProgramVerdict:
    """A verdict to hold against another; of what did not get through there is nothing to say."""
    verdict = _verdict(args, compiler)
    if failed := verdict.failed:
        raise UsageError(
            f"{compiler} did not get through: {failed.outcome}: {failed.last_words}",
            hint=f"see what it takes with --compiler {compiler} alone",
        )
    return verdict


def _verdict(args: Namespace, compiler: str) -> Verdict | ProgramVerdict:
    return _of_program(args, compiler) if args.fn else _of_plan(args, compiler)


def _most(args: Namespace) -> int | None:
    return None if args.verbose else FEW_ROWS


def _of_plan(args: Namespace, compiler: str) -> Verdict:
    plan = _read(args.plan)
    with compile_progress() as watch:
        return verify(plan, until=args.until or "partitioned", compiler=compiler, watch=watch)


def _read(path: str) -> Plan | ServedStep:
    """A plan to train; or, of a fleet, the generate step of its replicas."""
    text = read_text(path)
    return step_of_fleet(text) if is_fleet(text) else from_json(text)


def _of_program(args: Namespace, compiler: str) -> ProgramVerdict:
    if args.plan or args.expect:
        raise UsageError(
            "--fn verifies a function without a plan", hint="leave the plan and --expect out"
        )
    if args.on is None:
        raise UsageError(
            "--fn needs a slice to compile for", hint="add --on v5e:4x4, or any of rooflight chips"
        )
    with compile_progress() as watch:
        return verify_function(
            args.fn,
            on=args.on,
            mesh=args.mesh,
            explicit=args.explicit,
            until=args.until or "scheduled",
            compiler=compiler,
            watch=watch,
        )


def _run_expectation(args: Namespace) -> int:
    _refuse(args, ["--baseline", "--compiler", "--html"], "needs a plan to compile")
    plan = _read(args.plan) if args.plan else from_json(_EXAMPLE.read_text())
    expected = subject_of(plan).expected()
    if args.json:
        fields = [asdict(one) for one in expected]
        print_json("verify", {"slice": plan.slice, "expected": fields})
        return 0
    subject = f"{plan.model.name}, {plan.layout} on {plan.slice}"
    show(answer_text(expected_answer(subject, expected, most=_most(args))))
    if args.plan is None:
        command = "rooflight plan train llama3-8b --on v5e:4x4 --batch 64Ki --seq 4096"
        suggest(f"{command} --json > plan.json; rooflight verify plan.json")
    return 0


def _refuse(args: Namespace, flags: list[str], why: str) -> None:
    for flag in flags:
        if getattr(args, flag.removeprefix("--")):
            raise UsageError(f"{flag} {why}", hint=f"leave {flag} out")
