"""`rooflight reconcile`: a run's plan, its program and its measured steps, side by side."""

from datetime import date
from pathlib import Path

from rooflight.api.measured import reconcile
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.reconcile_page import calibration_page, document, html_text, run_page
from rooflight.errors import UsageError
from rooflight.measure.reconcile.calibrate import calibrate_runs, calibration_file

HELP = "a run's plan, program and measured steps, term by term: the gap as a waterfall of causes"
_FORM = """rooflight reconcile RUN...                planned, compiled, measured; causes of the gap
rooflight reconcile RUN --on HARDWARE     where it did not run on the chips of its plan
rooflight reconcile RUN... --save FOLDER  constants of these runs, for ROOFLIGHT_CALIBRATIONS
RUN is the --out of `rooflight train` or `rooflight launch`, with --profile-at.
"""


def configure(parser: Parser) -> None:
    parser.add_argument("runs", nargs="*", help="folders of runs; none: what there is")
    parser.add_argument(
        "--on", metavar="HARDWARE", help="what it ran on, if not on what was planned: this-host:8"
    )
    parser.add_argument("--html", metavar="FILE", help="also write one run as a page")
    parser.add_argument(
        "--save",
        metavar="FOLDER",
        help="also fit a calibration to three runs or more, and write it into a folder that exists",
    )
    parser.set_examples("rooflight reconcile", "rooflight reconcile --json")


def run(args: Namespace) -> int:
    if not args.runs:
        if args.json:
            print_json("reconcile", {"form": _FORM})
        else:
            print(_FORM, end="")
        return 0
    if args.html and len(args.runs) > 1:
        raise UsageError("a page shows one run", hint="give --html with one RUN")
    found = [reconcile(folder, on=args.on) for folder in args.runs]
    fitted = calibrate_runs(found, made=str(date.today())) if args.save else None
    if args.html:
        write_file(args.html, html_text(found[0]), flag="--html")
    if fitted is not None:
        name, text = calibration_file(fitted)
        write_file(str(Path(args.save) / name), text, flag="--save")
    if args.json:
        print_json("reconcile", document(found, fitted))
        return 0
    pages = [run_page(one) for one in found]
    show("\n\n".join([*pages, *([calibration_page(fitted)] if fitted else [])]))
    if fitted is not None:
        suggest(f"ROOFLIGHT_CALIBRATIONS={args.save} rooflight plan train ...")
    return 0
