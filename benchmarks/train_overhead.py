"""What the trainer's loop costs over the bare step, and what saving costs over the loop.

Blocks of the same steps take turns: the jitted step on one batch in a tight loop; the trainer's
loop with data and events; the same with a checkpoint every 20 steps.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jax

from benchmarks.record import Row, ratio_row, row_of
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.file.record import Plan, from_json
from rooflight.program.from_plan.train import make_program
from rooflight.program.model.params import init_params
from rooflight.program.shardings import device_mesh
from rooflight.program.train import batch_spec, begin_state
from rooflight.train.checkpoints import Checkpoints
from rooflight.train.events import EventLog, read_events
from rooflight.train.loop import batches, compiled_step, run_steps
from rooflight.train.optimizer import make_optimizer
from rooflight.train.run import Run
from rooflight.train.supervisor import free_port
from rooflight.train.tokens import write_tokens

STEPS = 40  # of a block
BLOCK = Block(Attention(8, 4, 32), Mlp(1024))
MODEL = ModelSpec("small", "A small model", 256, 320, (Repeat((BLOCK,), 4),))


def run(*, quick: bool) -> Iterator[Row]:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(f"127.0.0.1:{free_port('127.0.0.1')}", 1, 0)
    with tempfile.TemporaryDirectory() as folder:
        found = _timed(Path(folder), 1 if quick else 11)
    yield row_of("step in a tight loop", found["bare"])
    yield row_of("step in the trainer's loop", found["loop"])
    yield row_of("step with a checkpoint every 20 steps", found["saving"])
    yield ratio_row("trainer's loop / tight loop", found["loop"], found["bare"])
    yield ratio_row("with checkpoints / trainer's loop", found["saving"], found["loop"])


def _timed(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step in each block."""
    run = Run(_plan(), _tokens(folder), str(folder / "run"), STEPS)
    program = make_program(run.plan)
    mesh, optimizer = device_mesh(program.constraints.axes), make_optimizer(run, program)
    rows = jax.NamedSharding(mesh, batch_spec(program))
    log = EventLog(folder, attempt=1)
    found: dict[str, list[float]] = {"bare": [], "loop": [], "saving": []}
    with jax.set_mesh(mesh):
        step = compiled_step(run, program, optimizer, mesh, log.tell)
        params = init_params(program.specs, program.constraints, jax.random.key(0))
        state = jax.block_until_ready(begin_state(program, optimizer, params))
        batch = next(batches(run, rows, 0)).batch
        for number in range(rounds):
            began = time.perf_counter()
            for _ in range(STEPS):
                state, _ = step(state, batch)
            jax.block_until_ready(state)
            found["bare"].append((time.perf_counter() - began) / STEPS)
            for name, every in (("loop", STEPS), ("saving", STEPS // 2)):
                mine = replace(run, out=str(folder / f"{name}-{number}"), save_every=every)
                log = EventLog(mine.folder, attempt=1)
                checkpoints = Checkpoints(mine, tell=log.tell)
                state, _ = run_steps(mine, rows, step, state, 0, checkpoints, log.tell)
                checkpoints.close()
                found[name].append(_seconds(mine.folder) / STEPS)
    return found


def _seconds(folder: Path) -> float:
    """All time of the steps, and that of saves between them; the last save is after them."""
    events = [e for e in read_events(folder) if e["event"] in ("step", "save")]
    return sum(float(str(e["seconds"])) for e in events[:-1])


def _tokens(folder: Path) -> str:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(200)]
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(rng.choices(words, k=12)) for _ in range(2000)))
    write_tokens([text], folder / "tokens", vocab=300)
    return str(folder / "tokens")


def _plan() -> Plan:
    example = from_json((files("rooflight.compile") / "example_plan.json").read_text())
    return replace(
        example,
        model=MODEL,
        slice="v5e:1x1",
        batch=16,
        seq=32,
        recipe="f32",
        layout="dp=X",
        mesh="X=1",
        remat="none",
        microbatches=1,
        zero=1,
    )
