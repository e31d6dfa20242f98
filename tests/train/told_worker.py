"""What the trainer's step tells, on four fake devices: `python told_worker.py NAME...`.

Prints for each plan whether the step that tells a norm has, to the last bit, the losses and weights
of the step that does not; its norm; and that of the gradients, from weights less a rate times them.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from launched import COMPILES_QUICKLY  # pyright: ignore

os.environ |= COMPILES_QUICKLY

import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import optax  # noqa: E402  # pyright: ignore[reportMissingTypeStubs]
from small_run import BATCH, MODEL, SEQ, small_plan  # noqa: E402  # pyright: ignore

from rooflight.program.from_plan.train import make_program  # noqa: E402
from rooflight.program.model.params import Tree, init_params  # noqa: E402
from rooflight.program.shardings import device_mesh  # noqa: E402
from rooflight.program.train import (  # noqa: E402
    Batch,
    batch_spec,
    begin_state,
    make_loss,
    make_measured_step,
    make_train_step,
)
from rooflight.train.optimizer import make_optimizer  # noqa: E402
from rooflight.train.run import Run  # noqa: E402

STAGES: dict[str, Any] = {"schedule": "1f1b", "stages": 2, "microbatches": 4}
PLANS = {
    "fsdp": small_plan("fsdp=X", "X=4", "v5e:2x2", microbatches=2),
    "stages": small_plan("fsdp=X,pp=P", "X=2,P=2", "v5e:2x2", **STAGES),
}


def _leaves(tree: Tree) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def main() -> None:
    for name in sys.argv[1:]:
        plan = PLANS[name]
        program, ways = make_program(plan), plan.microbatches
        optimizer = make_optimizer(Run(plan, "tokens", "run", 10), program)
        mesh = device_mesh(program.constraints.axes)
        with jax.set_mesh(mesh):
            rows = jax.NamedSharding(mesh, batch_spec(program))
            drawn = np.random.default_rng(0).integers(0, MODEL.vocab, (BATCH, SEQ + 1))
            ids = [jax.device_put(drawn[:, i : i + SEQ].astype(np.int32), rows) for i in (0, 1)]
            batch = Batch(ids[0], ids[1], jax.device_put(np.ones((BATCH, SEQ), np.float32), rows))

            def begin(optimizer: Any, program: Any = program) -> Any:
                key = jax.random.key(0)
                weights = init_params(program.specs, program.constraints, key)
                return begin_state(program, optimizer, weights)

            plain = make_train_step(program, optimizer, microbatches=ways)
            told = make_measured_step(program, optimizer, microbatches=ways)
            one, other = begin(optimizer), begin(optimizer)
            before = _leaves(one.params)
            losses: list[float] = []
            norms: list[float] = []
            same = True
            for _ in range(3):
                (one, loss), (other, found) = plain(one, batch), told(other, batch)
                same &= float(loss) == float(found.loss)
                losses.append(float(loss))
                norms.append(float(found.norm))
            pairs = zip(_leaves(one.params), _leaves(other.params), strict=True)
            same &= all(np.array_equal(a, b) for a, b in pairs)
            by_hand = held_out = None
            if name == "fsdp":
                weights = init_params(program.specs, program.constraints, jax.random.key(0))
                held_out = float(make_loss(program, microbatches=ways)(weights, batch))
                descent = optax.sgd(1.0)
                state, _ = make_train_step(program, descent, microbatches=ways)(
                    begin(descent), batch
                )
                moved = zip(before, _leaves(state.params), strict=True)
                sums = [np.sum((a.astype(np.float64) - b) ** 2) for a, b in moved]
                by_hand = float(np.sqrt(sum(sums)))
        line = {"plan": name, "same": same, "norm": norms[0], "by_hand": by_hand}
        print(json.dumps({**line, "loss": losses[0], "held_out": held_out}), flush=True)


main()
