"""`rooflight validate`: predictions beside published measurements, and how far they are off."""

from dataclasses import asdict
from pathlib import Path

from rooflight.cli.flags import add_choice, add_verbose
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.validate_page import validation_page, validation_picture, validation_report
from rooflight.measure.published.replay import REPLAYED, ask_rows
from rooflight.measure.published.rows import read_rows
from rooflight.measure.published.serving_replay import KIND as SERVE
from rooflight.measure.published.serving_validation import (
    shipped_serving_accuracy,
    validate_served,
    validate_silicon,
)
from rooflight.measure.published.validation import (
    GROUPS,
    Validation,
    accuracies,
    accuracy,
    joined_validations,
    shipped_validation,
    validate_rows,
)

HELP = "predictions held against published measurements: errors by group, rows refused and why"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--rows",
        metavar="FILE",
        help="replay the runs of another file, YAML or JSON, with the shipped calibrations;"
        " without it, the shipped rows, each answered by a fit that had not seen it",
    )
    parser.add_argument(
        "--silicon",
        metavar="FILE.csv",
        help="replay a CSV of measured serving, in aiconfigurator's columns",
    )
    add_choice(
        parser,
        "--by",
        tuple(GROUPS),
        what="way to group",
        default="chip",
        help="group rows by chip (default), source, family, blocks or engine",
    )
    parser.add_argument("--html", metavar="FILE.html", help="write the whole report, with plots")
    parser.add_argument(
        "--svg", metavar="FILE.svg", help="write the plot of the first kind of rows"
    )
    add_verbose(parser, help="also list every row, its interval and what was assumed")
    parser.set_examples("rooflight validate --by source", "rooflight validate --html accuracy.html")


def run(args: Namespace) -> int:
    file = args.rows or args.silicon
    found = _found(args.rows, args.silicon)
    if args.html:
        write_file(args.html, validation_report(found, rows=file), flag="--html")
    if args.svg:
        write_file(args.svg, validation_picture(found), flag="--svg")
    if args.json:
        print_json("validate", _document(found, args.by))
        return 0
    served = {} if file else shipped_serving_accuracy()
    show(validation_page(found, by=args.by, rows=file, served=served, verbose=args.verbose))
    if not file and not args.html:
        suggest("rooflight validate --html accuracy.html")
    return 0


def _found(rows: str | None, silicon: str | None) -> Validation:
    """Both files where both are given."""
    given = [_replay(Path(rows))] if rows else []
    given += [_replay_silicon(Path(silicon))] if silicon else []
    return joined_validations(given) if given else shipped_validation()


def _replay(path: Path) -> Validation:
    rows = read_rows(path)
    with progress("rows", "asked") as watch:
        asked = ask_rows(rows, watch=lambda done, total: watch(done, total, len(rows.of(REPLAYED))))
    trained = validate_rows(asked)
    return joined_validations([trained, validate_served(rows)]) if rows.of((SERVE,)) else trained


def _replay_silicon(path: Path) -> Validation:
    with progress("rows", "asked") as watch:
        return validate_silicon(path, watch=lambda done, total: watch(done, total, total))


def _document(found: Validation, by: str) -> dict[str, object]:
    kinds = list(dict.fromkeys(r.kind for r in found.replays))
    return {
        "rows": len(found.replays) + len(found.refusals),
        "coverage": found.coverage,
        "all": {kind: asdict(accuracy("all", found.of(kind))) for kind in kinds},
        by: {kind: [asdict(g) for g in accuracies(found.of(kind), by)] for kind in kinds},
        "replays": [asdict(r) | {"error": r.error, "inside": r.is_inside} for r in found.replays],
        "refusals": [asdict(r) for r in found.refusals],
    }
