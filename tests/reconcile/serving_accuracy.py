"""The shipped errors of serving rows that do not ship, worked out again: minutes.

Run it: `python tests/reconcile/serving_accuracy.py FILE.csv [--write]`, with measured serving in
aiconfigurator's columns; the serving rows that ship are added. It prints each group beside what
ships, and `--write` makes that `serving_accuracy.json`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rooflight.measure.published.cross_validate import HELD_OUT, cross_validate
from rooflight.measure.published.hierarchy import fit_hierarchy, roof_seconds
from rooflight.measure.published.replay import CaseSet
from rooflight.measure.published.rows import FOLDER, read_rows
from rooflight.measure.published.serving_loop import ServingTable, serving_table
from rooflight.measure.published.serving_replay import ask_served, ask_silicon
from rooflight.measure.published.serving_validation import ACCURACY_FILE, shipped_serving_accuracy
from rooflight.measure.published.validation import Accuracy, Replay, accuracy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    shipped = ask_served(read_rows(FOLDER / "serving_runs.json"))
    found = held_out_accuracy(joined(ask_silicon(options.csv), shipped))
    before = {one.group: one for one in shipped_serving_accuracy()}
    differ = 0
    for now in found:
        then = before.pop(now.group, None)
        same = then is not None and (now.rows, round(now.mape, 3)) == (
            then.rows,
            round(then.mape, 3),
        )
        differ += not same
        told = f"{then.rows} rows, {then.mape:.1%}" if then else "nothing"
        print(f"{now.group}: {now.rows} rows, {now.mape:.1%}; ships: {told}")
    print(f"{differ + len(before)} of {len(found)} groups differ from what ships")
    if options.write:
        ACCURACY_FILE.write_text(accuracy_text(found), encoding="utf-8")
    return 0


def joined(one: CaseSet, other: CaseSet) -> CaseSet:
    """Rows of two files; a row that both have, the CSV's subset in the other, counts once."""
    known = {case.id for case in one.cases}
    more = other.take([case.id not in known for case in other.cases])
    if not isinstance(one.table, ServingTable) or not isinstance(more.table, ServingTable):
        raise TypeError("only serving rows join")
    table = serving_table([one.table, more.table])
    return CaseSet((*one.cases, *more.cases), (*one.refusals, *other.refusals), table)


def held_out_accuracy(asked: CaseSet) -> tuple[Accuracy, ...]:
    """Errors on rows held out by configuration, by model and by source, of every group."""
    roofs = roof_seconds(asked)
    start = fit_hierarchy(asked)
    out = {by: cross_validate(asked, by, start=start) for by in HELD_OUT}
    own = out["configuration"]
    replays = [
        Replay(
            case.id,
            case.kind,
            case.source,
            case.chip,
            case.family,
            case.engine,
            case.blocks,
            case.measured_s,
            float(own.seconds[i]),
            float(own.spread[i]),
            float(roofs[i]),
            float(out["model"].seconds[i]),
            float(out["source"].seconds[i]),
        )
        for i, case in enumerate(asked.cases)
    ]
    return grouped_accuracy(replays)


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


def accuracy_text(found: Sequence[Accuracy]) -> str:
    """One group a line."""
    lines = [json.dumps({k: _short(v) for k, v in asdict(one).items()}) for one in found]
    return '{"schema": 1,\n"groups": [\n' + ",\n".join(lines) + "\n]}\n"


def _short(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
