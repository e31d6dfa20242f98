"""`rooflight reconcile`: a run's plan, its program and its measured steps, side by side."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from rooflight.api.measured import reconcile
from rooflight.cli.output import picked, print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.measure.reconcile.calibrate import RunCalibration, calibrate_runs, calibration_file
from rooflight.measure.reconcile.run import Reconciled
from rooflight.plan.file.codec import encode
from rooflight.ui.answer import Answer
from rooflight.ui.answers.gap import fitted_answer, run_answer
from rooflight.ui.html.answer import answer_page
from rooflight.ui.text.answer import answer_text

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
    answers = [*map(run_answer, found), *([fitted_answer(fitted)] if fitted else [])]
    show("\n\n".join(map(answer_text, answers)))
    if fitted is not None:
        suggest(f"ROOFLIGHT_CALIBRATIONS={args.save} rooflight plan train ...")
    return 0


def html_text(found: Reconciled) -> str:
    """A run as one page that stands alone."""
    said = run_answer(found)
    terms, causes, places = said.tables
    return answer_page(
        f"{found.plan.model.title}: planned, compiled, measured",
        "rooflight reconcile",
        Answer(said.sentences),
        {
            "The gap": Answer((), tables=(causes,), pictures=said.pictures),
            "Planned, compiled, measured": Answer((), tables=(terms,)),
            "Where": Answer((), tables=(places,)),
        },
    )


def document(found: Sequence[Reconciled], fitted: RunCalibration | None) -> dict[str, object]:
    """The same for a program."""
    return {
        "runs": [_document(one) for one in found],
        "calibration": asdict(fitted.calibration) if fitted else None,
    }


def _document(found: Reconciled) -> dict[str, object]:
    gap = found.gap
    return {
        "folder": str(found.folder),
        "on": str(found.mesh.slice),
        "mesh": str(found.mesh),
        "layout": found.plan.layout,
        **picked(gap, "planned_s measured_s unattributed_s explained"),
        "terms": encode(gap.terms),
        "causes": encode(gap.causes),
        "scopes": encode(found.scopes),
        "goodput": encode(found.found.spent),
    }
