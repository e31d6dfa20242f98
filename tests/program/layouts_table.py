"""Trains under every layout of the planner on fake devices; writes docs/layouts-checked.md.

Run as a process of its own: `python layouts_table.py FOLDER`. What `train_worker.py` found of each
model is kept in FOLDER, and only what is not there yet is run (ten seconds a layout); then the page
is written. With `--show` nothing is run, and what is there is printed.
"""

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any  # JSON

from program_cases import MODELS, SLICES, cases

HERE = Path(__file__).parent
DOC = HERE.parents[1] / "docs" / "layouts-checked.md"
PARTS = ("whole", "staged")
HEAD = """# Layouts that were run

Every layout that `search.space.templates` names, on fake CPU devices in fp32, against the same
program on one device: *gradient* is the largest difference of any gradient of the first step, over
the largest element of its tensor; *loss* is the largest difference in six steps of training. Both
must be at most 1e-5. Written by `python tests/program/layouts_table.py`; models are those of
`tests/program/program_cases.py`, pipelines run by 1F1B.
"""


def path_of(folder: Path, model: str, devices: int, part: str) -> Path:
    return folder / f"{model}-{devices}-{part}.json"


def run_missing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for model, devices, part in product(MODELS, SLICES, PARTS):
        path = path_of(folder, model, devices, part)
        if not path.exists():
            command = [sys.executable, str(HERE / "train_worker.py"), model, str(devices), part]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            path.write_text(done.stdout)


def found_in(folder: Path, model: str, devices: int) -> dict[str, Any]:
    """By layout, in the planner's order: mesh, gradient, loss; only what was run."""
    paths = [path_of(folder, model, devices, part) for part in PARTS]
    ran = {
        k: v for p in paths if p.exists() for k, v in json.loads(p.read_text())["layouts"].items()
    }
    every = ((case, ran.get(str(case))) for case in cases(model, devices))
    return {case.layout.text: (str(case.mesh), worst) for case, worst in every if worst}


def summary(folder: Path) -> Iterator[str]:
    yield "| model | devices | layouts | run | largest gradient | largest loss |"
    yield "|---|---:|---:|---:|---:|---:|"
    for model, devices in product(MODELS, SLICES):
        found = [worst for _, worst in found_in(folder, model, devices).values()]
        most = [f"{max(w[k] for w in found):.1e}" if found else "-" for k in ("gradient", "loss")]
        total = len(list(cases(model, devices)))
        yield f"| {model} | {devices} | {total} | {len(found)} | {' | '.join(most)} |"


def table(folder: Path, model: str, devices: int) -> Iterator[str]:
    yield "| layout | mesh | gradient | loss |"
    yield "|---|---|---:|---:|"
    for layout, (mesh, worst) in found_in(folder, model, devices).items():
        yield f"| `{layout}` | {mesh} | {worst['gradient']:.1e} | {worst['loss']:.1e} |"


def page(folder: Path) -> str:
    days = sorted(
        datetime.date.fromtimestamp(p.stat().st_mtime).isoformat() for p in folder.glob("*.json")
    )
    lines = [HEAD, f"jax {version('jax')}, {' to '.join(dict.fromkeys((days[0], days[-1])))}.", ""]
    lines += summary(folder)
    for model, devices in product(MODELS, SLICES):
        lines += ["", f"## {model} on {devices} devices", "", *table(folder, model, devices)]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--show", action="store_true", help="run nothing, print what is there")
    args = parser.parse_args()
    if args.show:
        print(page(args.folder), end="")
        return
    run_missing(args.folder)
    DOC.write_text(page(args.folder))


if __name__ == "__main__":
    main()
