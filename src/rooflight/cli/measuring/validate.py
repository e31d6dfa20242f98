"""`rooflight validate`: predictions beside published measurements, and how far they are off."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rooflight.cli.flags import add_choice, add_verbose
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.errors import UsageError
from rooflight.measure.published.memory_replay import (
    MemoryReplay,
    MemoryValidation,
    memory_accuracies,
    shipped_memory_rows,
    validate_memory,
)
from rooflight.measure.published.replay import REPLAYED, RefusedRow, ask_rows
from rooflight.measure.published.rows import read_rows
from rooflight.measure.published.serving_replay import KIND as SERVE
from rooflight.measure.published.serving_replay import (
    Directions,
    shipped_directions,
    shipped_serving_accuracy,
    validate_served,
    validate_silicon,
)
from rooflight.measure.published.validation import (
    GROUPS,
    Accuracy,
    Replay,
    Validation,
    accuracies,
    accuracy,
    joined_validations,
    shipped_validation,
    validate_rows,
)
from rooflight.ui.html.page import Grid, Section, bullets, figure, grid, page, paragraph
from rooflight.ui.html.style import as_file
from rooflight.ui.svg.accuracy import AccuracyPlot, Dot, accuracy_svg
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

_TITLES = {"train": "training", "micro": "microbenchmarks", "serve": "serving"}
_HEADER = ("group", "rows", "median", "MAPE", "p90", "bias", "inside 80%", "spec only")
_MORE = ("model out", "source out")
_OF_MEMORY = ("group", "rows", "median", "MAPE", "worst", "bias", "inside 90%", "least chance")

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
    given = [_replay(Path(args.rows))] if args.rows else []
    given += [_replay_silicon(Path(args.silicon))] if args.silicon else []
    found = joined_validations(given) if given else shipped_validation()
    peaks = MemoryValidation()
    if args.rows or not file:
        peaks = validate_memory(read_rows(Path(args.rows)) if args.rows else shipped_memory_rows())
    if args.html:
        write_file(args.html, validation_report(found, peaks, rows=file), flag="--html")
    if args.svg:
        write_file(args.svg, validation_picture(found), flag="--svg")
    if args.json:
        print_json("validate", _document(found, peaks, args.by))
        return 0
    served = {} if file else shipped_serving_accuracy()
    show(validation_page(found, peaks, by=args.by, rows=file, served=served, verbose=args.verbose))
    if not file and not args.html:
        suggest("rooflight validate --html accuracy.html")
    return 0


def _replay(path: Path) -> Validation:
    rows = read_rows(path)
    with progress("rows", "asked") as watch:
        asked = ask_rows(rows, watch=lambda done, total: watch(done, total, len(rows.of(REPLAYED))))
    trained = validate_rows(asked)
    return joined_validations([trained, validate_served(rows)]) if rows.of((SERVE,)) else trained


def _replay_silicon(path: Path) -> Validation:
    with progress("rows", "asked") as watch:
        return validate_silicon(path, watch=lambda done, total: watch(done, total, total))


def _document(found: Validation, peaks: MemoryValidation, by: str) -> dict[str, object]:
    kinds = list(dict.fromkeys(r.kind for r in found.replays))
    return {
        "rows": len(found.replays) + len(found.refusals),
        "coverage": found.coverage,
        "all": {kind: asdict(accuracy("all", found.of(kind))) for kind in kinds},
        by: {kind: [asdict(g) for g in accuracies(found.of(kind), by)] for kind in kinds},
        "replays": [asdict(r) | {"error": r.error, "inside": r.is_inside} for r in found.replays],
        "refusals": [asdict(r) for r in (*found.refusals, *peaks.refusals)],
        "memory": [asdict(group) for group in memory_accuracies(peaks.replays)],
        "peaks": [_peak(replay) for replay in peaks.replays],
    }


def _peak(replay: MemoryReplay) -> dict[str, object]:
    return {
        "id": replay.row.id,
        "chip": replay.row.chip,
        "framework": replay.job.framework.label,
        "measured_bytes": replay.measured_bytes,
        "counted_bytes": replay.found.total_bytes,
        "error": replay.error,
        "inside": replay.is_inside,
        "chance": replay.found.chance,
        "parts": {part.name: part.nbytes for part in replay.found.parts},
    }


def validation_page(
    found: Validation,
    peaks: MemoryValidation,
    *,
    by: str,
    rows: str | None,
    served: Mapping[str, Sequence[Accuracy]],
    verbose: bool = False,
) -> str:
    """The answer, the table of each kind, the refusals; `served` are of rows that do not ship."""
    blocks = [_answer(found, peaks, rows)]
    for kind in _kinds(found):
        replays = found.of(kind)
        groups = (*accuracies(replays, by), accuracy("all", replays))
        blocks.append(f"{_TITLES.get(kind, kind)}, by {by}\n{_table(groups)}")
    for what, every in served.items():
        groups = [group for group in every if by == "engine" or ":" not in group.group]
        blocks.append(f"serving, seconds {what}; these rows do not ship\n{_table(groups)}")
    if served:
        blocks += [_ordered(what, every) for what, every in shipped_directions().items()]
    if peaks.replays:
        cells = memory_cells(peaks.replays)
        blocks.append("peak memory, by feature\n" + table(_OF_MEMORY, cells, align="lrrrrrrr"))
    if found.refusals or peaks.refusals:
        blocks.append(_refused([*found.refusals, *peaks.refusals]))
    if verbose:
        blocks += [_rows(found)] if found.replays else []
        blocks += [_peaks(peaks)] if peaks.replays else []
    return "\n\n".join(blocks)


def _kinds(found: Validation) -> list[str]:
    return list(dict.fromkeys(r.kind for r in found.replays))


def memory_cells(replays: Sequence[MemoryReplay]) -> list[tuple[str, ...]]:
    return [
        (
            g.group,
            str(g.rows),
            *(f"{v:.1%}" for v in (g.median, g.mape)),
            *(f"{v:+.1%}" for v in (g.worst, g.bias)),
            f"{g.inside:.0%}",
            "-" if g.least_chance is None else f"{g.least_chance:.0%}",
        )
        for g in memory_accuracies(replays)
    ]


def _answer(found: Validation, peaks: MemoryValidation, rows: str | None) -> str:
    total = len(found.replays) + len(found.refusals)
    how = (
        f"{rows}, answered with the shipped calibrations"
        if rows
        else "published rows, each answered by a fit that saw no row of its configuration"
    )
    lines = [f"{len(found.replays):,} of {total:,} rows answered ({found.coverage:.1%}): {how}"]
    lines = lines if total else []
    for kind in _kinds(found):
        for blocks in ("dense", "experts"):
            chosen = [r for r in found.of(kind) if r.blocks == blocks]
            if chosen:
                a = accuracy(blocks, chosen)
                lines.append(
                    f"{_TITLES.get(kind, kind)}, {blocks}: median error {a.median:.1%},"
                    f" mean {a.mape:.1%}, {a.inside:.0%} inside their 80 % interval"
                )
    count = len(peaks.replays) + len(peaks.refusals)
    if count:
        medians = [f"{g.median:.1%} ({g.group})" for g in memory_accuracies(peaks.replays)[:2]]
        lines.append(f"peak memory: {len(peaks.replays)} of {count} rows counted, median error")
        lines[-1] += f" {', '.join(medians)}"
    return "\n".join(lines)


def _table(groups: Sequence[Accuracy]) -> str:
    header, cells = accuracy_cells(groups)
    return table(header, cells, align="l" + "r" * (len(header) - 1))


def accuracy_cells(groups: Sequence[Accuracy]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    has_more = any(g.model_out_mape is not None for g in groups)
    header = _HEADER + (_MORE if has_more else ())
    return header, [_row(g, has_more) for g in groups]


def _row(g: Accuracy, has_more: bool) -> tuple[str, ...]:
    shown = (g.median, g.mape, g.p90)
    cells = (g.group, f"{g.rows}", *(f"{v:.1%}" for v in shown), f"{g.bias:+.1%}")
    cells += (f"{g.inside:.0%}", f"{g.roof_mape:.0%}")
    if not has_more:
        return cells
    more = (g.model_out_mape, g.source_out_mape)
    return (*cells, *("-" if v is None else f"{v:.1%}" for v in more))


def _ordered(what: str, found: Sequence[Directions]) -> str:
    """Of two settings of one model, chip and engine, whether the faster one is known."""
    header = ("group", "differ in", "pairs", "in order", "wrong by, median")
    rows = [
        (d.group, d.differ, f"{d.pairs:,}", f"{d.right / d.pairs:.1%}", f"{d.wrong_by - 1:.0%}")
        for d in found
    ]
    title = f"serving, seconds {what}: pairs of settings more than 3 % apart, held out"
    return f"{title}\n{table(header, rows, align='llrrr')}"


def _refused(refusals: Sequence[RefusedRow]) -> str:
    counts = Counter((r.source, r.because) for r in refusals)
    rows = [(source, str(n), because) for (source, because), n in counts.most_common()]
    return "refused\n" + table(("source", "rows", "because"), rows, align="lrl")


def _rows(found: Validation) -> str:
    ranked = sorted(found.replays, key=lambda r: -abs(r.error))
    rows = [
        (
            r.id,
            format_seconds(r.measured_s),
            format_seconds(r.predicted_s),
            f"{r.error:+.1%}",
            "yes" if r.is_inside else "no",
            "; ".join(r.assumed) or "-",
        )
        for r in ranked
    ]
    header = ("row", "measured", "predicted", "error", "inside", "assumed")
    return "rows, the worst first\n" + table(header, rows, align="lrrrll")


def _peaks(peaks: MemoryValidation) -> str:
    rows = [
        (
            replay.row.id,
            format_si(replay.measured_bytes, "B"),
            format_si(replay.found.total_bytes, "B"),
            f"{replay.error:+.1%}",
            "yes" if replay.is_inside else "no",
            replay.job.framework.label,
        )
        for replay in sorted(peaks.replays, key=lambda r: -abs(r.error))
    ]
    header = ("row", "measured", "counted", "error", "inside", "counted as")
    return "peaks, the worst first\n" + table(header, rows, align="lrrrll")


def validation_picture(found: Validation) -> str:
    """The first kind of rows as a file: what was said beside what the data sheet alone says."""
    if not found.replays:
        raise UsageError("no row has a time to draw", hint="leave --svg out")
    kind = _kinds(found)[0]
    replays = found.of(kind)
    sheet = [Dot(r.measured_s, r.roof_s, "data sheet alone", "") for r in replays]
    said = [Dot(r.measured_s, r.predicted_s, f"forecast, {r.blocks}", "") for r in replays]
    title = f"Seconds of a step of {_TITLES.get(kind, kind)}, predicted against measured"
    plot = AccuracyPlot(title, (*sorted(said, key=lambda dot: dot.series), *sheet))
    return as_file(accuracy_svg(plot, size=360))


def validation_report(found: Validation, peaks: MemoryValidation, *, rows: str | None) -> str:
    """The HTML page: a scatter plot of each kind, tables by every grouping, refusals."""
    sections = [_section(kind, found.of(kind)) for kind in _kinds(found)]
    if peaks.replays:
        cells = tuple(memory_cells(peaks.replays))
        body = (grid(Grid("By feature", _OF_MEMORY, cells, "lrrrrrrr")),)
        sections.append(Section("memory", "Peak memory", body))
    refusals = (*found.refusals, *peaks.refusals)
    refused = Counter(f"{r.source}: {r.because}" for r in refusals)
    sections.append(
        Section(
            "refused",
            "Rows without an answer",
            (bullets([f"{text} ({n})" for text, n in refused.most_common()]),),
        )
    )
    answer = _answer(found, peaks, rows).splitlines()
    return page(
        title="Predicted against measured",
        kicker="rooflight validate",
        lead=[paragraph(line) for line in answer],
        sections=sections,
    )


def _section(kind: str, replays: tuple[Replay, ...]) -> Section:
    title = _TITLES.get(kind, kind)
    dots = tuple(
        Dot(r.measured_s, r.predicted_s, r.blocks, f"{r.id}: {r.error:+.1%}") for r in replays
    )
    picture = accuracy_svg(AccuracyPlot(f"Seconds of {title}", dots))
    body = [
        figure(
            picture,
            caption=f"{title}: every row, predicted over measured; the band is 10 % either way",
            describe=f"{len(dots)} dots near the diagonal",
        )
    ]
    for by in GROUPS:
        header, cells = accuracy_cells((*accuracies(replays, by), accuracy("all", replays)))
        body.append(grid(Grid(f"By {by}", header, tuple(cells), "l" + "r" * (len(header) - 1))))
    return Section(kind, title.capitalize(), tuple(body))
