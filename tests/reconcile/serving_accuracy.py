"""Calibrations, errors and evidence of serving rows that do not ship, worked out again: minutes.

Run it: `python tests/reconcile/serving_accuracy.py FILE.csv [--write]`, with measured serving in
aiconfigurator's columns; the serving rows that ship are added. It prints each group beside what
ships, and `--write` makes it what ships: `serving_accuracy.json`, the files of both folders of
calibrations, and the index of layouts that were measured.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

import numpy as np

from rooflight.hardware.calibration import DENSE, EXPERTS
from rooflight.hardware.serving_calibration import FIRST_TOKEN_FOLDER, SERVING_FOLDER
from rooflight.measure.published.calibrate import calibration_files, fit_serving
from rooflight.measure.published.hierarchy import COVERS
from rooflight.measure.published.replay import CaseSet
from rooflight.measure.published.rows import FOLDER, read_rows
from rooflight.measure.published.serving_loop import ServingTable, serving_table
from rooflight.measure.published.serving_replay import (
    ACCURACY_FILE,
    FIRST_TOKEN,
    PER_TOKEN,
    Directions,
    ask_served,
    ask_silicon,
    shipped_serving_accuracy,
)
from rooflight.measure.published.validation import Accuracy, Replay, accuracy, validate_shipped
from rooflight.plan.serving.fleet.evidence import EVIDENCE_FILE

from .first_tokens import first_token_cases
from .serving_pairs import directions_of, read_settings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    asked = joined(ask_silicon(options.csv), ask_served(read_rows(FOLDER / "serving_runs.json")))
    replays = validate_shipped(asked).replays
    first = first_token_cases(asked, np.array([r.predicted_s for r in replays]))
    firsts = validate_shipped(first).replays
    found = {PER_TOKEN: grouped_accuracy(replays), FIRST_TOKEN: grouped_accuracy(firsts)}
    settings = read_settings(options.csv)
    ordered = {
        PER_TOKEN: directions_of(settings, replays),
        FIRST_TOKEN: directions_of(settings, firsts),
    }
    compare(found)
    if options.write:
        ACCURACY_FILE.write_text(accuracy_text(found, ordered), encoding="utf-8")
        EVIDENCE_FILE.write_text(evidence_text(asked, replays), encoding="utf-8")
        # a dozen rows of one source on TPUs answer each other off by half: nothing to plan with
        on_gpus = first.take([case.chip_kind == "gpu" for case in first.cases])
        for folder, rows in ((SERVING_FOLDER, asked), (FIRST_TOKEN_FOLDER, on_gpus)):
            for name, text in calibration_files(fit_serving(rows, made=str(date.today()))).items():
                (folder / name).write_text(text, encoding="utf-8")
    return 0


def compare(found: Mapping[str, Sequence[Accuracy]]) -> None:
    """Each group beside what ships."""
    differ = 0
    for what, before in shipped_serving_accuracy().items():
        known = {one.group: one for one in before}
        for now in found[what]:
            then = known.pop(now.group, None)
            told = f"{then.rows} rows, {then.mape:.1%}" if then else "nothing"
            differ += told != f"{now.rows} rows, {now.mape:.1%}"
            print(f"{what}, {now.group}: {now.rows} rows, {now.mape:.1%}; ships: {told}")
        differ += len(known)
    print(f"{differ} groups differ from what ships")


def joined(one: CaseSet, other: CaseSet) -> CaseSet:
    """Rows of two files; a row that both have, the CSV's subset in the other, counts once."""
    known = {case.id for case in one.cases}
    more = other.take([case.id not in known for case in other.cases])
    if not isinstance(one.table, ServingTable) or not isinstance(more.table, ServingTable):
        raise TypeError("only serving rows join")
    table = serving_table([one.table, more.table])
    return CaseSet((*one.cases, *more.cases), (*one.refusals, *other.refusals), table)


def grouped_accuracy(replays: Sequence[Replay]) -> tuple[Accuracy, ...]:
    """Of all rows, of dense and expert models, together and separated, and of each chip."""
    groups: dict[str, list[Replay]] = {}
    for replay in replays:
        place = f"{replay.engine} on {replay.chip}"
        for name in (
            "all rows",
            replay.blocks,
            f"{replay.blocks}, {replay.family}",
            f"{replay.blocks}, {replay.family}: {place}",
        ):
            groups.setdefault(name, []).append(replay)
    return tuple(accuracy(name, groups[name]) for name in sorted(groups))


def accuracy_text(
    found: Mapping[str, Sequence[Accuracy]], ordered: Mapping[str, Sequence[Directions]]
) -> str:
    """One group a line."""
    return f'{{"schema": 3,\n{_parts(found)},\n"directions": {{\n{_parts(ordered)}}}}}\n'


def _parts(found: Mapping[str, Sequence[Accuracy]] | Mapping[str, Sequence[Directions]]) -> str:
    return ",\n".join(
        f"{json.dumps(what)}: [\n{_lines(map(asdict, every))}\n]" for what, every in found.items()
    )


def evidence_text(asked: CaseSet, replays: Sequence[Replay]) -> str:
    """How each chip and engine was split, in how many rows, and how far off a new source is."""
    counts = Counter(
        (c.chip_kind, c.chip, c.engine, c.blocks, *c.degrees.items(), ("kv", *c.reach))
        for c in asked.cases
    )
    rows = [
        dict(zip(("kind", "chip", "engine", "blocks"), key[:4], strict=True))
        | {name: ways for name, ways in key[4:] if ways != 1}
        | {"rows": count}
        for key, count in sorted(counts.items(), key=str)
    ]
    apart = [r for r in replays if r.family == "disaggregated"]
    off = {
        "extrapolated": _most(replays, lambda r: r.source_out_s or 1.0),
        "disaggregated": _most(apart, lambda r: r.predicted_s),
    }
    head = ",\n".join(f"{json.dumps(name)}: {json.dumps(most)}" for name, most in off.items())
    return f'{{"schema": 2,\n{head},\n"rows": [\n{_lines(rows)}\n]}}\n'


def _most(replays: Sequence[Replay], predicted_s: Callable[[Replay], float]) -> dict[str, float]:
    """By kind of model: what most rows stay within, in logs."""
    found: dict[str, float] = {}
    for blocks in (DENSE, EXPERTS):
        sizes = sorted(
            abs(math.log(r.measured_s / predicted_s(r))) for r in replays if r.blocks == blocks
        )
        found[blocks] = round(sizes[int(COVERS * len(sizes))], 4)
    return found


def _lines(records: Iterable[Mapping[str, object]]) -> str:

    lines = [json.dumps({k: _short(v) for k, v in one.items()}) for one in records]
    return ",\n".join(lines)


def _short(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
