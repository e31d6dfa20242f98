# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What the trainer's loop costs over the bare step, and what saving costs over the loop.

`python overhead_worker.py FOLDER TOKENS ROUNDS`. Blocks of the same steps take turns: the jitted
step on one batch in a tight loop; the trainer's loop with data and events; the same with saves.
Prints the seconds of a step in each block.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize("127.0.0.1:" + sys.argv[4], 1, 0)

sys.path.insert(0, str(Path(__file__).parent))
from small_run import MODEL, small_plan  # noqa: E402

from rooflight.program.params import init_params  # noqa: E402
from rooflight.program.shardings import device_mesh  # noqa: E402
from rooflight.program.train import batch_spec, begin_state  # noqa: E402
from rooflight.train.batches import batches  # noqa: E402
from rooflight.train.checkpoints import Checkpoints  # noqa: E402
from rooflight.train.events import EventLog, read_events  # noqa: E402
from rooflight.train.loop import compiled_step, run_steps  # noqa: E402
from rooflight.train.optimizer import make_optimizer  # noqa: E402
from rooflight.train.run import Run  # noqa: E402
from rooflight.verify.build_plan import make_program  # noqa: E402

STEPS = 40  # of a block


def main(folder: Path, tokens: str, rounds: int) -> None:
    run = Run(_plan(), tokens, str(folder / "run"), STEPS)
    program = make_program(run.plan)
    mesh, optimizer = device_mesh(program.pins.axes), make_optimizer(run, program)
    rows = jax.NamedSharding(mesh, batch_spec(program))
    log = EventLog(folder, attempt=1)
    found: dict[str, list[float]] = {"bare": [], "loop": [], "saving": []}
    with jax.set_mesh(mesh):
        step = compiled_step(run, program, optimizer, mesh, log.tell)
        params = init_params(program.specs, program.pins, jax.random.key(0))
        held = [jax.block_until_ready(begin_state(program, optimizer, params))]
        batch = next(batches(run, rows, 0)).batch

        def bare() -> None:
            for _ in range(STEPS):
                held[0], _ = step(held[0], batch)
            jax.block_until_ready(held)

        for number in range(rounds):
            began = time.perf_counter()
            bare()
            found["bare"].append((time.perf_counter() - began) / STEPS)
            for name, every in (("loop", STEPS), ("saving", STEPS // 2)):
                mine = replace(run, out=str(folder / f"{name}-{number}"), save_every=every)
                log = EventLog(mine.folder, attempt=1)
                checkpoints = Checkpoints(mine, tell=log.tell)
                held[0], _ = run_steps(mine, rows, step, held[0], 0, checkpoints, log.tell)
                checkpoints.close()
                found[name].append(_seconds(mine.folder) / STEPS)
    print(json.dumps(found))


def _seconds(folder: Path) -> float:
    """All time of the steps, and that of saves between them; the last save is after them."""
    events = [e for e in read_events(folder) if e["event"] in ("step", "save")]
    return sum(float(str(e["seconds"])) for e in events[:-1])


def _plan() -> Any:
    """Wide enough that a step takes 50 ms or more."""
    block = MODEL.layers[0].blocks[0]
    attention = replace(block.attention, num_heads=8, num_kv_heads=4, head_dim=32)
    wide = replace(block, attention=attention, mlp=replace(block.mlp, width=1024))
    model = replace(MODEL, d_model=256, layers=(replace(MODEL.layers[0], blocks=(wide,)),))
    return replace(small_plan("dp=X", "X=1", "v5e:1x1"), model=model)


main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
