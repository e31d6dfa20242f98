"""`rooflight reconcile`: a run's plan, its program and its measured steps, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from rooflight.api.measured import reconcile
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.measure.reconcile.calibrate import RunCalibration, calibrate_runs, calibration_file
from rooflight.measure.reconcile.gap import Gap
from rooflight.measure.reconcile.run import Reconciled
from rooflight.plan.file.codec import encode
from rooflight.ui.browser.run_gap_picture import gap_picture, merged
from rooflight.ui.html.page import Grid, Section, figure, grid, page, paragraph
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds

_SCOPES = 8
_TERMS = ("term", "planned", "compiled", "measured")
_CAUSES = ("from planned to measured", "seconds", "of the gap", "measured by")
_PLACES = ("where", "took", "at the roof")
_LEFT = "unattributed"

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


def run_page(found: Reconciled) -> str:
    """A run as text."""
    parts = [
        "\n".join(_lead(found)),
        table(_TERMS, list(_terms(found.gap)), align="lrrr"),
        table(_CAUSES, list(_causes(found.gap)), align="lrrl"),
        table(_PLACES, list(_places(found)), align="lrr"),
        _spent(found),
    ]
    return "\n\n".join(parts)


def _lead(found: Reconciled) -> Iterator[str]:
    gap, plan = found.gap, found.plan
    yield (
        f"{found.folder}: {plan.model.title} on {found.mesh.slice}, {plan.layout} with"
        f" {found.mesh}, {format_count(plan.tokens)} tokens per step"
    )
    yield (
        f"planned {format_seconds(gap.planned_s)}, measured {format_seconds(gap.measured_s)}:"
        f" {_signed(gap.seconds)}, of which {gap.explained:.0%} is explained by causes that were"
        " measured alone"
    )
    if found.expected.basis.calibration.rows:
        one = found.expected
        yield (
            f"the calibration of {one.basis.calibration.chip} expected"
            f" {format_seconds(one.seconds)} (80 % between {format_seconds(one.low_s)} and"
            f" {format_seconds(one.high_s)})"
        )
    if found.compiled.collectives_s is None:
        yield "the compiled collectives are unknown: the run kept no program, or one not understood"


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + format_seconds(abs(seconds))


def _terms(gap: Gap) -> Iterator[tuple[str, ...]]:
    for term in gap.terms:
        cells = (term.planned_s, term.compiled_s, term.measured_s)
        yield term.name, *("-" if s is None else format_seconds(s) for s in cells)


def _causes(gap: Gap) -> Iterator[tuple[str, str, str, str]]:
    yield "planned", format_seconds(gap.planned_s), "", ""
    for cause in merged(gap):
        yield cause.name, _signed(cause.seconds), _share(cause.seconds, gap), cause.witness
    yield _LEFT, _signed(gap.unattributed_s), _share(gap.unattributed_s, gap), ""
    yield "measured", format_seconds(gap.measured_s), "", ""


def _share(seconds: float, gap: Gap) -> str:
    return f"{seconds / gap.seconds:.0%}" if gap.seconds else "-"


def _places(found: Reconciled) -> Iterator[tuple[str, str, str]]:
    for scope in found.scopes[:_SCOPES]:
        yield scope.name, format_seconds(scope.seconds), format_seconds(scope.roof_s)


def _spent(found: Reconciled) -> str:
    spent = found.found.spent
    return (
        f"of {format_seconds(spent.wall_s)} since the run began {spent.share:.0%} went into steps"
        f" that count; {format_seconds(spent.repeated_s)} into repeated steps,"
        f" {format_seconds(spent.saving_s)} into waiting for saves, {spent.attempts}"
        f" attempt{'s' * (spent.attempts > 1)}"
    )


def html_text(found: Reconciled) -> str:
    """A run as one page that stands alone."""
    lead = list(_lead(found))
    causes = Grid("Causes of the gap", _CAUSES, tuple(_causes(found.gap)), "lrrl")
    terms = Grid("Seconds of a step", _TERMS, tuple(_terms(found.gap)), "lrrr")
    places = Grid("Where most is lost", _PLACES, tuple(_places(found)), "lrr")
    picture = figure(
        gap_picture(found),
        caption="From the planned step to the measured one",
        describe="; ".join(" ".join(row) for row in causes.rows),
    )
    return page(
        title=f"{found.plan.model.title}: planned, compiled, measured",
        kicker="rooflight reconcile",
        lead=[paragraph(line) for line in lead],
        sections=[
            Section("gap", "The gap", (picture, grid(causes))),
            Section("terms", "Planned, compiled, measured", (grid(terms),)),
            Section("where", "Where", (grid(places),)),
            Section("run", "The run", (paragraph(_spent(found)),)),
        ],
    )


def calibration_page(fitted: RunCalibration) -> str:
    """The constants, and how far a fit to the other runs was off for each."""
    one = fitted.calibration
    rows = [
        (str(folder), format_seconds(measured), format_seconds(said), f"{said / measured - 1:+.1%}")
        for folder, measured, said in zip(
            fitted.folders, fitted.measured_s, fitted.predicted_s, strict=True
        )
    ]
    head = (
        f"a calibration of {one.chip}, {one.blocks}, from {one.rows} runs; each predicted by the"
        f" others: median error {one.median_error:.1%}, mean {one.mean_error:.1%}"
    )
    values = [(name, f"{value:.3g}") for name, value in one.values.items()]
    return "\n\n".join(
        [
            head,
            table(("run", "measured", "by the others", "off"), rows, align="lrrr"),
            table(("constant", "value"), values, align="lr"),
        ]
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
        "planned_s": gap.planned_s,
        "measured_s": gap.measured_s,
        "unattributed_s": gap.unattributed_s,
        "explained": gap.explained,
        "terms": encode(gap.terms),
        "causes": encode(gap.causes),
        "scopes": encode(found.scopes),
        "goodput": encode(found.found.spent),
    }
