# pyright: reportMissingTypeStubs=false
# jax annotates its own functions only in part, and tensorstore none.
"""A checkpoint elsewhere: under another plan, with what that takes of a host; or on Hugging Face.

In: one step of a run's checkpoints and a plan. Out: `RestoreMemory`, before anything is read; and a
run's folder with the same state laid out as the plan says, from which training goes on. Or a folder
that `transformers` loads and `rooflight serve` serves: weights, config, tokenizer.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax

from rooflight.errors import RooflightError, UsageError
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan
from rooflight.program.checkpoint.export import write_huggingface
from rooflight.program.checkpoint.forms import Array
from rooflight.program.from_plan.train import make_program
from rooflight.program.model.forward import Program
from rooflight.program.model.params import map_specs, tensor_specs
from rooflight.program.pipeline.layers import LayerPath, whole
from rooflight.program.shardings import abstract_mesh, device_mesh
from rooflight.program.train import abstract_state
from rooflight.train.checkpoints import Checkpoints
from rooflight.train.loop import Tell, on_devices
from rooflight.train.optimizer import make_optimizer
from rooflight.train.restore import (
    STACKED,
    STATE,
    check_same_run,
    named,
    read_about,
    read_state,
    saved_staging,
)
from rooflight.train.run import FILE, Run, check_weights, claim, read_run
from rooflight.train.seal import damage, is_sealed
from rooflight.train.tokens import TOKENIZER, check_data

_MOST = 1.5  # times what is kept, at the peak: held by `tests/train/test_restore.py`
_COPIES = 3  # of a stack whose rows are picked anew: as saved, joined, picked


@dataclass(frozen=True, slots=True)
class RestoreMemory:
    """Bytes that restoring needs: of a chip, of a host when done, of a host at its peak."""

    state_bytes: int
    chip_bytes: int
    host_chips: int
    restacked_bytes: int  # the largest stack whose rows are picked anew, of a host; 0 if none is

    @property
    def host_bytes(self) -> int:
        return self.chip_bytes * self.host_chips

    @property
    def peak_bytes(self) -> int:
        """Shards that are read are held twice for a while; a stack as often as it is copied."""
        return self.host_bytes + max(
            int((_MOST - 1) * self.host_bytes), _COPIES * self.restacked_bytes
        )


def moved_run(step: Path, plan: Plan, out: str) -> Run:
    """The run of a checkpoint under another plan, in a folder of its own."""
    run = read_checkpoint_run(step)
    check_data(Path(run.data), plan.model.vocab)  # a part of what a run is, and perhaps elsewhere
    return replace(run, plan=plan, out=out)


def read_checkpoint_run(step: Path) -> Run:
    path = step.parent.parent / FILE
    if not path.is_file():
        raise UsageError(
            f"{step} is not a checkpoint of a run: {path} is not there",
            hint="give the folder of a run, or a step of its checkpoints",
        )
    return read_run(path)


def restore_memory(step: Path, run: Run) -> RestoreMemory:
    """From shapes and shardings alone: no device, no array."""
    check_same_run(run, step)
    program = make_program(run.plan)
    mesh = abstract_mesh(program.constraints.axes)
    with jax.sharding.use_abstract_mesh(mesh):
        leaves = named(abstract_state(program, make_optimizer(run, program), mesh))
    chips = run.plan.placed().slice
    share = {name: _shard_bytes(leaf) for name, leaf in leaves.items()}
    host_chips = min(chips.chip.host_chips, chips.num_chips)
    again = saved_staging(run.plan.model, read_about(step)) != _staging(program)
    stacks = [n * _rows(leaves[name]) for name, n in share.items() if "layers/" in name]
    return RestoreMemory(
        sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves.values()),
        sum(share.values()),
        host_chips,
        max(stacks, default=0) * host_chips if again else 0,
    )


def _staging(program: Program) -> object:
    return program.staging or whole(program.model)


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape) * leaf.dtype.itemsize


def _rows(leaf: jax.ShapeDtypeStruct) -> int:
    """How many ways the layers of a stack are split: they are read whole to be picked from."""
    if leaf.sharding is None or not leaf.shape:
        return 1
    return leaf.shape[0] // max(1, leaf.sharding.shard_shape(leaf.shape)[0])


def check_whole(step: Path) -> None:
    """Refuses a checkpoint that is not, byte for byte, what was written."""
    wrong = damage(step) if is_sealed(step) else "it was never sealed"
    if wrong is not None:
        raise RooflightError(f"{step} is not whole: {wrong}", hint="take the one before it")


def move(step: Path, run: Run, tell: Tell) -> int:
    """Restores on the devices there are, saves in the run's own folder; gives the step."""
    claim(run)
    program = make_program(run.plan)
    mesh, optimizer = device_mesh(program.constraints.axes), make_optimizer(run, program)
    number = read_about(step).step
    with jax.set_mesh(mesh):
        like = jax.tree.map(partial(on_devices, mesh), abstract_state(program, optimizer, mesh))
        state = jax.block_until_ready(read_state(step, like, program))
        checkpoints = Checkpoints(run, tell=tell)
        checkpoints.save(number, state)
        checkpoints.close()
    return number


def available_bytes() -> int | None:
    """Memory of this machine that a process could get; None if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    facts: Mapping[str, str] = dict(line.split(":", 1) for line in lines if ":" in line)
    found = facts.get("MemAvailable")
    return int(found.split()[0]) * 1024 if found else None


# As a folder of Hugging Face: no device is needed, and the host holds one file of weights.

_CONFIG = "config.json"
_BESIDE = (
    *(TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"),
    "generation_config.json",
)


def export_run(step: Path, folder: Path, config: Path | None) -> list[Path]:
    """Writes the weights of a step in the dtype they are trained in; gives the files of weights."""
    run = read_checkpoint_run(step)
    check_whole(step)
    described = config or _config(run)
    check_weights(run.plan, str(described))
    model, dtype = run.plan.model, make_program(run.plan).weights
    specs = tensor_specs(model, dtype)
    names = [*named(map_specs(lambda spec: spec, specs))]
    places = _places(model, step)

    def fetch(leaf: int, row: int | None) -> Array:
        match = STACKED.fullmatch(names[leaf])
        if match is None or row is None:
            return _open(step, names[leaf]).read().result()
        run, block, at = places[int(match[2]), int(match[3]), row]
        return _open(step, f"layers/{run}/{block}/{match[4]}")[at].read().result()

    read = json.loads(described.read_text(encoding="utf-8"))
    written = write_huggingface(fetch, specs, folder, config=read)
    _copy_beside(run, folder)
    return written


def _places(model: ModelSpec, step: Path) -> dict[tuple[int, int, int], LayerPath]:
    """Where the checkpoint has a layer, by where the model has it: run, block, row."""
    there = dict(saved_staging(model, read_about(step)).places())
    return {path: there[layer] for layer, path in whole(model).places()}


@lru_cache(maxsize=2)
def _open(step: Path, name: str) -> Any:
    import tensorstore

    base = {"driver": "ocdbt", "base": f"file://{step / STATE}/", "path": f"params/{name}/"}
    return tensorstore.open({"driver": "zarr", "kvstore": base}).result()


def _config(run: Run) -> Path:
    if run.weights is None:
        raise UsageError(
            "the run began with new weights, so nothing says what Hugging Face calls its model",
            hint="give --config FILE, a config.json of the same sizes",
        )
    return Path(run.weights) / _CONFIG


def _copy_beside(run: Run, folder: Path) -> None:
    """The tokenizer of the first weights; without one, that of the data."""
    for name in _BESIDE if run.weights else ():
        if (found := Path(run.weights or "") / name).is_file():
            shutil.copyfile(found, folder / name)
    if not (folder / TOKENIZER).exists() and (found := Path(run.data) / TOKENIZER).is_file():
        shutil.copyfile(found, folder / TOKENIZER)
