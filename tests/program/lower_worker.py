"""Lowers one train step of a large model for thousands of chips on a machine that has none.

Run as a process of its own: `python lower_worker.py MODEL LAYOUT MESH SLICE BATCH SEQ [STAGES]`.
Prints one JSON object: CPU seconds of a standard machine, the most memory this process ever held,
and the size of what was described.
"""

import json
import os
import re
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import optax  # pyright: ignore[reportMissingTypeStubs]
from device_weights import device_nbytes

from reference_loop import slowness
from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.models.layout.schedules import make_schedule
from rooflight.models.presets import load_model
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.model.forward import Program
from rooflight.program.model.params import every_spec
from rooflight.program.shardings import abstract_mesh
from rooflight.program.train import abstract_batch, abstract_state, make_train_step


def _peak_bytes() -> int:
    """Of this program alone; `ru_maxrss` remembers the one that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) * 1024


def main(
    name: str, layout: str, axes: str, on: str, batch: int, seq: int, stages: int = 1
) -> dict[str, object]:
    before, start = slowness(), time.process_time()
    model, microbatches = load_model(name), 2 * stages
    table = make_schedule("1f1b", stages=stages, microbatches=microbatches)
    graph = model_graph(model)
    constraints = constraints_of(
        graph,
        parse_layout(layout),
        mesh=parse_mesh(axes, on=on),
        dims=dim_sizes(graph, batch=batch // microbatches, seq=seq),
        dtype=DTYPES["bf16"],
    )
    program = Program(
        *(model, constraints),
        weights="bf16",
        compute="bf16",
        remat="block",
        schedule=table if stages > 1 else None,
    )
    mesh, adam = abstract_mesh(constraints.axes), optax.adamw(1e-4)
    with jax.sharding.use_abstract_mesh(mesh):
        state = abstract_state(program, adam, mesh)
        rows = abstract_batch(program, mesh, batch=batch, seq=seq)
        step = make_train_step(program, adam, microbatches=microbatches)
        text = step.trace(state, rows).lower(lowering_platforms=("tpu",)).as_text(debug_info=True)
    spent = time.process_time() - start
    return {
        "devices": mesh.size,
        "params": sum(s.num_elements for s in every_spec(program.specs)),
        "device_bytes": sum(device_nbytes(s, constraints) for s in every_spec(program.specs)),
        "standard_s": 2 * spent / (before + slowness()),
        "peak_bytes": _peak_bytes(),
        "scopes": sorted(
            op.name for op in graph.ops if re.search(rf"{re.escape(op.name)}[/)]", text)
        ),
        "ops": sorted(op.name for op in graph.ops),
    }


if __name__ == "__main__":
    name, layout, axes, on, *sizes = sys.argv[1:]
    print(json.dumps(main(name, layout, axes, on, *map(int, sizes))))
