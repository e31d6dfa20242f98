"""The steps of a run that the profiler records: `traces/process-I`, read by `rooflight profile`."""

from collections.abc import Callable

import jax

from rooflight.train.run import Run

FOLDER = "traces"


class Window:
    """Opens and closes the profiler at the steps that `Run` names."""

    def __init__(self, run: Run, tell: Callable[..., None]) -> None:
        self._run, self._tell = run, tell
        self._open = False

    def turns(self, step: int) -> bool:
        """Does it open or close before this step?"""
        first = self._run.profile_at
        if first is None:
            return False
        return step == first + self._run.profile_steps if self._open else step == first

    def turn(self, step: int) -> None:
        folder = self._run.folder / FOLDER / f"process-{jax.process_index()}"
        if self._open:
            jax.profiler.stop_trace()
            self._tell("profiled", step=step, folder=str(folder))
        else:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # each call of Python: slow, and names no gap better
            jax.profiler.start_trace(str(folder), profiler_options=options)
        self._open = not self._open
