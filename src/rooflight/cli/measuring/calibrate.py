"""`rooflight calibrate`: the constants of a chip and its software, fitted to measured runs."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.errors import UnknownNameError, UsageError
from rooflight.hardware.calibration import ANY, Calibration, Constant, shipped_calibrations
from rooflight.hardware.serving_calibration import shipped_serving
from rooflight.measure.published.calibrate import (
    calibration_files,
    evidence_text,
    fit_calibrations,
    fit_serving,
)
from rooflight.measure.published.replay import REPLAYED, CaseSet, ask_rows
from rooflight.measure.published.rows import PublishedFile, read_rows, shipped_rows
from rooflight.measure.published.serving_replay import ask_silicon
from rooflight.plan.training.forecast.evidence import EVIDENCE_FILE
from rooflight.ui.text.table import table

HELP = "efficiencies, overlaps and overheads of a chip under its software, fitted to measured runs"
_SHIPPED = "shipped"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "rows",
        help="a file of measured runs, YAML or JSON, that moves the shipped constants; `shipped`"
        " fits the published runs afresh; a CSV of measured serving, in aiconfigurator's columns,"
        " moves those of serving",
    )
    parser.add_argument("--chip", metavar="NAME", help="only the rows of one chip, as they name it")
    parser.add_argument(
        "--write", metavar="FOLDER", help="write one TOML file per chip into a folder that exists"
    )
    parser.set_examples(
        "rooflight calibrate shipped --chip tpu_v4", "rooflight calibrate shipped --chip tpu_v5e"
    )


def run(args: Namespace) -> int:
    serves = args.rows.endswith(".csv")
    asked = _served(args) if serves else _trained(args)
    fit = fit_serving if serves else fit_calibrations
    if args.rows != _SHIPPED:
        known = shipped_serving() if serves else shipped_calibrations()
        asked = replace(asked, priors={place: one.values for place, one in known.items()})
    found = fit(asked, made=str(date.today()))
    if args.write:
        for name, text in calibration_files(found).items():
            write_file(str(Path(args.write) / name), text, flag="--write")
        if args.rows == _SHIPPED and not args.chip:
            index = str(Path(args.write) / EVIDENCE_FILE.name)
            write_file(index, evidence_text(asked), flag="--write")
    if args.json:
        print_json("calibrate", {"calibrations": [asdict(one) for one in found]})
        return 0
    show(_page(asked, found, asked.table.constants))
    suggest("rooflight validate")
    return 0


def _served(args: Namespace) -> CaseSet:
    with progress("rows", "asked") as watch:
        asked = ask_silicon(Path(args.rows), watch=lambda done, total: watch(done, total, total))
    chips = {case.chip for case in asked.cases}
    if args.chip and args.chip not in chips:
        raise UnknownNameError("chip of these rows", args.chip, chips)
    return asked.take([args.chip in (None, case.chip) for case in asked.cases])


def _trained(args: Namespace) -> CaseSet:
    rows = shipped_rows() if args.rows == _SHIPPED else read_rows(Path(args.rows))
    return _ask(_chosen(rows, args.chip))


def _chosen(rows: PublishedFile, chip: str | None) -> PublishedFile:
    if chip is None:
        return rows
    chosen = tuple(row for row in rows.runs if row.chip == chip)
    if not chosen:
        raise UnknownNameError("chip of these rows", chip, {row.chip for row in rows.runs})
    return replace(rows, runs=chosen)


def _ask(rows: PublishedFile) -> CaseSet:
    with progress("rows", "asked") as watch:
        asked = ask_rows(rows, watch=lambda done, total: watch(done, total, len(rows.of(REPLAYED))))
    if not asked.cases:
        why = f": {asked.refusals[0].because}" if asked.refusals else ""
        raise UsageError(f"no row can be answered{why}", hint="`rooflight validate` shows rows")
    return asked


def _page(asked: CaseSet, found: tuple[Calibration, ...], constants: Mapping[str, Constant]) -> str:
    own = [c for c in found if c.chip not in ("tpu", "gpu", "cpu")]
    blocks = [
        f"{len(own)} calibrations from {len(asked.cases)} rows; {len(asked.refusals)} rows refused"
    ]
    blocks += [_block(one, constants) for one in own]
    return "\n\n".join(blocks)


def _block(one: Calibration, constants: Mapping[str, Constant]) -> str:
    engine = "" if one.engine == ANY else f" under {one.engine}"
    head = (
        f"{one.chip}{engine}, {one.blocks}: {one.rows} rows, held out median error"
        f" {one.median_error:.1%}, mean {one.mean_error:.1%}, 80 % within"
        f" {one.spread:.1%} of the log"
    )
    rows = [
        (name, f"{value:.3g}", constants[name].unit, constants[name].physics)
        for name, value in one.values.items()
        if name in constants
    ]
    return head + "\n" + table(("constant", "value", "unit", "physics"), rows, align="lrll")
