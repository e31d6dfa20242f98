"""How much memory restoring takes: `python restore_memory_worker.py FOLDER save|restore LAYOUT`.

A state of more than a gigabyte on one host. Prints its bytes and by how many the process grew at
the most while it was restored, over what it held before.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

sys.path.insert(0, str(Path(__file__).parent))
from small_run import MODEL, small_plan  # noqa: E402

from rooflight.models.spec import Attention, Block, Mlp, Repeat  # noqa: E402
from rooflight.program.from_plan.train import make_program  # noqa: E402
from rooflight.program.model.params import init_params  # noqa: E402
from rooflight.program.shardings import device_mesh  # noqa: E402
from rooflight.program.train import abstract_state, begin_state  # noqa: E402
from rooflight.train.checkpoints import Checkpoints  # noqa: E402
from rooflight.train.loop import on_devices  # noqa: E402
from rooflight.train.optimizer import make_optimizer  # noqa: E402
from rooflight.train.run import Run  # noqa: E402

_BLOCK = Block(Attention(8, 4, 128), Mlp(4096))


def _status(name: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if name in x)
    return int(line.split()[1]) * 1024


def main(folder: str, what: str, layout: str) -> None:
    axes, _, mesh_text = layout.partition("@")
    model = replace(MODEL, d_model=1024, vocab=8192, layers=(Repeat((_BLOCK,), 6),))
    run = Run(replace(small_plan(axes, mesh_text, "v5e:2x2"), model=model), "tokens", folder, 10)
    program = make_program(run.plan)
    mesh, optimizer = device_mesh(program.constraints.axes), make_optimizer(run, program)
    with jax.set_mesh(mesh):
        checkpoints = Checkpoints(run, tell=lambda *_, **__: None)
        if what == "save":
            params = init_params(program.specs, program.constraints, jax.random.key(0))
            checkpoints.save(1, begin_state(program, optimizer, params))
            checkpoints.close()
            return
        like = jax.tree.map(partial(on_devices, mesh), abstract_state(program, optimizer, mesh))
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = _status("VmRSS")
        found = checkpoints.restore(like, program)
        assert found is not None
        jax.block_until_ready(found[0])
        nbytes = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(found[0])
            for shard in leaf.addressable_shards
        )
        print(json.dumps({"nbytes": nbytes, "peak": _status("VmHWM") - before}))


main(*sys.argv[1:])
