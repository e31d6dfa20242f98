# pyright: reportMissingImports=false
"""Generates under layouts of serving on fake devices, and compares with one device.

Run as a process of its own: `python serve_worker.py`. Prints one JSON object: for each layout how
far logits are from those of all tokens at once, how large these are, and the type of the cache.
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "program"))

import generate_layout_worker as worker  # sets the devices, so before jax
from program_cases import MODELS

from rooflight.program.from_plan.served_step import ServedStep, serving_constraints, spread_of
from rooflight.program.model.forward import Program

LAYOUTS = ("tp=8", "tp=8,kv=batch", "tp=8,kv=sequence", "tp=4,dp=2", "tp=4,ws=2")


def row_ways(program: Program) -> int:
    """Devices that split the rows of the cache, which attention may split further than the rest."""
    rows = program.constraints.ops[0, "attention.scores"].factors[0].axes_of("B")
    return math.prod(program.constraints.axes[axis] for axis in rows)


def main() -> None:
    model = MODELS["dense"]
    start = worker.start_of(model)
    plain = worker.whole(model, start)
    worker.row_ways = row_ways
    found: dict[str, object] = {}
    for layout in LAYOUTS:
        step = ServedStep(model, "v5e:2x4", layout, "f32", worker.BATCH, worker.PROMPT)
        program = Program(model, serving_constraints(step))
        logits, types = worker.run(program, start, spread_of(step))
        found[layout] = {"error": worker.apart(logits, plain), "cache": types["kv"]}
    print(json.dumps({"size": float(abs(plain).max()), "layouts": found}))


if __name__ == "__main__":
    main()
