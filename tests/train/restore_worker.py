"""Saves a state under one layout and restores it under others; prints what differs.

`python restore_worker.py FOLDER LAYOUT...`, a layout as `fsdp=X@X=8` or `pp=P@P=4@1f1b`. The first
one saves. Each restored state is compared leaf by leaf, layer by layer, with the first. In the end
another run asks for it.
"""

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "program"))
sys.path.insert(0, str(Path(__file__).parent))
from launched import COMPILES_QUICKLY  # pyright: ignore

os.environ |= COMPILES_QUICKLY

import jax
import numpy as np

DEVICES = 16
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)

from small_run import MODEL, small_plan  # noqa: E402  # pyright: ignore
from stage_weights import from_stages  # noqa: E402  # pyright: ignore

from rooflight.errors import UsageError  # noqa: E402
from rooflight.program.from_plan.train import make_program  # noqa: E402
from rooflight.program.model.params import init_params  # noqa: E402
from rooflight.program.shardings import device_mesh  # noqa: E402
from rooflight.program.train import abstract_state, begin_state  # noqa: E402
from rooflight.train.checkpoints import Checkpoints  # noqa: E402
from rooflight.train.loop import on_devices  # noqa: E402
from rooflight.train.optimizer import make_optimizer  # noqa: E402
from rooflight.train.run import Run  # noqa: E402


def _run(folder: str, text: str) -> Run:
    layout, mesh, *schedule = text.split("@")
    chips = {2: "v5e:2x1", 4: "v5e:2x2", 8: "v5e:4x2", 16: "v5e:4x4"}
    ways = [int(part.partition("=")[2]) for part in mesh.split(",")]
    changes: dict[str, Any] = {}
    if schedule:
        stages = dict(zip((p.partition("=")[0] for p in mesh.split(",")), ways, strict=True))["P"]
        changes = {"schedule": schedule[0], "stages": stages, "microbatches": 4}
    plan = small_plan(layout, mesh, chips[int(np.prod(ways))], **changes)
    plan = replace(plan, model=replace(MODEL, layers=(replace(MODEL.layers[0], times=6),)))
    return Run(plan, "tokens", folder, 10)


def _plain(program: Any, state: Any) -> list[np.ndarray[Any, Any]]:
    """Every leaf with layers as the model has them, whatever stages they are in."""

    def trees(tree: Any) -> Any:
        if program.staging is None:
            return jax.tree.map(np.asarray, tree)
        layers = jax.tree.map(np.asarray, tree.layers)
        found = from_stages(program.model, program.staging, layers, np.stack)
        return tree._replace(frame=jax.tree.map(np.asarray, tree.frame), layers=found)

    adam = state.optimizer[1][0]
    return jax.tree.leaves([trees(t) for t in (state.params, adam.mu, adam.nu)])


def main(folder: str, texts: list[str]) -> None:
    first = None
    for text in texts:
        run = _run(folder, text)
        program = make_program(run.plan)
        mesh, optimizer = device_mesh(program.constraints.axes), make_optimizer(run, program)
        with jax.set_mesh(mesh):
            checkpoints = Checkpoints(run, tell=lambda *_, **__: None)
            if first is None:
                params = init_params(program.specs, program.constraints, jax.random.key(0))
                state = begin_state(program, optimizer, params)
                checkpoints.save(1, state)
                checkpoints.close()
                first = _plain(program, state)
                continue
            like = jax.tree.map(partial(on_devices, mesh), abstract_state(program, optimizer, mesh))
            found = checkpoints.restore(like, program)
            assert found is not None
            leaves = _plain(program, found[0])
            same = all(np.array_equal(a, b) for a, b in zip(first, leaves, strict=True))
            placed = all(
                a.sharding == b.sharding
                for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(like), strict=True)
            )
            print(json.dumps({"layout": text, "same": same, "placed": placed}), flush=True)
            if text == texts[-1]:
                other = Checkpoints(replace(run, seed=1), tell=lambda *_, **__: None)
                try:
                    other.restore(like, program)
                except UsageError as error:
                    print(json.dumps({"other": str(error)}), flush=True)


main(sys.argv[1], sys.argv[2:])
