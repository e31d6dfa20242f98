# pyright: reportMissingTypeStubs=false
# orbax and jax annotate their own functions only in part.
"""Checkpoints of a run: saved behind its back, sealed, and restored to any mesh.

In: a `TrainState` on the mesh. Out: Orbax checkpoints, one folder a step. `save` returns as soon as
the state is copied off the devices; a thread seals what has been written. `restore` takes the
newest one that is whole, and sets one that is not aside. Arrays go straight to their shards.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from rooflight.plan.file.codec import encode
from rooflight.program.model.forward import Program
from rooflight.program.train import TrainState
from rooflight.train.restore import about, check_same_run, named, read_state
from rooflight.train.run import Run
from rooflight.train.seal import Sealing, damage, set_aside, set_aside_unsealed

FOLDER = "checkpoints"
_COMMIT_S = 600.0
Told = Callable[..., None]  # an event: its name, and facts by name


class Checkpoints:
    """The checkpoints of one run, as one process of it sees them."""

    def __init__(self, run: Run, *, tell: Told) -> None:
        logging.getLogger("absl").setLevel(logging.ERROR)
        self._folder = (run.folder / FOLDER).resolve()
        self._run, self._tell = run, tell
        self._index, self._count = jax.process_index(), jax.process_count()
        if self._index == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            set_aside_unsealed(self._folder, tell)
        self._together("folder")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=run.keep,
            enable_async_checkpointing=True,
            async_options=ocp.AsyncOptions(timeout_secs=int(_COMMIT_S)),
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)
        self._pending: int | None = None
        self._sealing: Sealing | None = None

    def restore(self, like: TrainState, program: Program) -> tuple[TrainState, int] | None:
        """The newest whole checkpoint, laid out as `like` says, and its step; None without any."""
        for step in sorted(self._manager.all_steps(), reverse=True):
            found = self._damage(step)
            if found is None:
                check_same_run(self._run, self._folder / str(step))
                return read_state(self._folder / str(step), like, program), step
            self._tell("damaged", step=step, reason=found)
            self._together("damaged")
            if self._index == 0:
                set_aside(self._folder / str(step))
            self._together("set aside")
            self._manager.reload()
        return None

    def _damage(self, step: int) -> str | None:
        mine = damage(self._folder / str(step), self._index, self._count)
        bad = np.asarray(multihost_utils.process_allgather(np.int32(mine is not None)))
        if not bad.any():
            return None
        return mine or f"process {int(bad.reshape(-1).argmax())} found a damaged file"

    def save(self, step: int, state: TrainState) -> None:
        """Begins to save; waits first for the save before, if that is not done."""
        if self._pending is not None:
            self._tell("waits", step=step, reason="the save before is not done")
            self.finish()
        began = time.monotonic()
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(named(state)),
                about=ocp.args.JsonSave(cast(dict[str, Any], encode(about(self._run, step)))),
            ),
        )
        self._pending = step
        self._tell("save", step=step, seconds=time.monotonic() - began)

    def poll(self) -> None:
        """Seals a save whose files are all there; to be called now and then."""
        if self._pending is None or self._manager.is_saving_in_progress():
            return
        if self._sealing is None:
            self._manager.check_for_errors()
            folder = self._folder / str(self._pending)
            self._sealing = Sealing(folder, self._index, self._count)
            self._sealing.start()
        elif self._sealing.is_done():
            self._tell("saved", step=self._pending)
            self._pending, self._sealing = None, None

    def finish(self) -> None:
        """Waits until what was begun is written and sealed."""
        self._manager.wait_until_finished()
        self.poll()
        if self._sealing is not None:
            self._sealing.join()
            self.poll()

    def close(self) -> None:
        self.finish()
        self._manager.close()

    def _together(self, what: str) -> None:
        if self._count > 1:
            multihost_utils.sync_global_devices(what)
