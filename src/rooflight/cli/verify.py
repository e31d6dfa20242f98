"""`rooflight verify`: the compiler's verdict on a plan."""

from importlib.resources import files

from rooflight.cli.compile_progress import compile_progress
from rooflight.cli.flags import add_choice, add_verbose
from rooflight.cli.output import print_json, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.verify_page import answer, document, expectation, expectation_document, tables
from rooflight.records import from_json, read_plan
from rooflight.verify.expect import expected_collectives
from rooflight.verify.judge import STAGES, judge

HELP = "a plan, compiled for its slice with no chip attached: what the compiler makes of it"

_EXAMPLE = files("rooflight.verify") / "example_plan.json"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "plan",
        nargs="?",
        help="a file of the verb plan (--json), - for the standard input;"
        " if left out, what an example expects",
    )
    add_choice(
        parser,
        "--until",
        STAGES,
        what="stage",
        default="partitioned",
        help="partitioned (default): collectives, in seconds; scheduled: memory too",
    )
    parser.add_argument(
        "--expect", action="store_true", help="only what the plan expects; nothing is compiled"
    )
    add_verbose(parser, help="every row of every table")
    parser.set_examples("rooflight verify", "rooflight verify --json")


def run(args: Namespace) -> int:
    if args.plan is None or args.expect:
        plan = read_plan(args.plan) if args.plan else from_json(_EXAMPLE.read_text())
        expected = expected_collectives(plan)
        if args.json:
            print_json("verify", expectation_document(plan, expected))
        else:
            print(expectation(plan, expected, everything=args.verbose))
            if args.plan is None:
                command = "rooflight plan train llama3-8b --on v5e:4x4 --batch 64Ki --seq 4096"
                suggest(f"{command} --json > plan.json; rooflight verify plan.json")
        return 0
    plan = read_plan(args.plan)
    with compile_progress() as watch:
        verdict = judge(plan, until=args.until, watch=watch)
    if args.json:
        print_json("verify", document(verdict))
    else:
        print("\n\n".join([answer(verdict), *tables(verdict, everything=args.verbose)]))
        if args.until == "partitioned":
            suggest(f"rooflight verify {args.plan} --until scheduled")
    return 1 if verdict.findings else 0
