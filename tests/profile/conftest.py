"""Traces to read: one written here with the names of a TPU's, one recorded on a CPU."""

from pathlib import Path

import pytest

from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.record import Trace

from .tpu import tpu_trace


@pytest.fixture(scope="session")
def tpu_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tpu") / "plugins" / "profile" / "run" / "host.xplane.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(tpu_trace())
    return path


@pytest.fixture(scope="session")
def tpu(tpu_path: Path) -> Trace:
    return read_trace(tpu_path)


@pytest.fixture(scope="session")
def cpu() -> Trace:
    return read_trace(EXAMPLE)
