"""What was measured: traces of JAX's profiler, and runs of one's own."""

from pathlib import Path

from rooflight.api.values import slice_of
from rooflight.hardware.slice import Slice
from rooflight.measure.reconcile.run import Reconciled, reconcile_run
from rooflight.measure.trace.read import read_trace as trace_of
from rooflight.measure.trace.record import Trace


def read_trace(path: str | Path) -> Trace:
    """A trace of JAX's profiler: an `.xplane.pb`, or the folder it was written to."""
    return trace_of(Path(path))


def reconcile(run: str | Path, *, on: str | Slice | None = None) -> Reconciled:
    """A training run: planned, compiled, measured, and the causes of the gap."""
    return reconcile_run(Path(run), None if on is None else slice_of(on))
