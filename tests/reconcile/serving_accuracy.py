"""The shipped errors of serving rows that do not ship, worked out again: minutes.

Run it: `python tests/reconcile/serving_accuracy.py FILE.csv [--write]`, with measured serving in
aiconfigurator's columns; the serving rows that ship are added. It prints each group beside what
ships, and `--write` makes that `serving_accuracy.json`.
"""

import argparse
import sys
from pathlib import Path

from rooflight.reconcile.rows import FOLDER, read_rows
from rooflight.reconcile.serving_replay import ask_served, ask_silicon
from rooflight.reconcile.serving_validation import (
    ACCURACY_FILE,
    accuracy_text,
    held_out_accuracy,
    joined,
    shipped_serving_accuracy,
)


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


if __name__ == "__main__":
    sys.exit(main())
