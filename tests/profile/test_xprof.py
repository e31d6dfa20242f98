"""Another reader of traces, `xprof` of PyPI, on the same traces: its tables and ours.

The traces are of two origins: `rich` are made here with what a TPU's trace has, and `recorded` is
of this program on a CPU (where xprof has no table of a device, only the memory of programs). No
trace of a real TPU ships with the tests. Two conventions differ and are kept apart: our step lasts
until the next one begins, xprof's until its own last op ends; and a loop around others hides
nothing here.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rooflight.measure.trace.overlap import busy
from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.table import Profile, profile

from .rich import rich_trace

pytestmark = pytest.mark.full
NEAR = 0.01
_SCRIPT = Path(__file__).with_name("xprof_tables.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with xprof alone."""
    folder = tmp_path_factory.mktemp("xprof")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "xprof"]
    subprocess.run(install, check=True, capture_output=True, timeout=1800)
    return python


def _both(python: Path, folder: Path) -> tuple[dict[str, Any], Profile]:
    found = profile(read_trace(folder))
    names = [program.name for program in found.programs]
    command = [str(python), str(_SCRIPT), str(folder), *names]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout), found


@pytest.mark.parametrize("hosts", [1, 2])
def test_ops_roofs_flights_and_memory_are_those_of_xprof(
    hosts: int, python: Path, tmp_path: Path
) -> None:
    for host in range(hosts):
        (tmp_path / f"{'ab'[host]}.xplane.pb").write_bytes(rich_trace(late_us=9 * host))
    theirs, ours = _both(python, tmp_path)
    runs, seconds = _by_op(ours)
    assert {op["hlo_op_name"]: op["occurrences"] for op in theirs["ops"]} == runs
    assert {op["hlo_op_name"]: op["total_self_time"] * 1e-6 for op in theirs["ops"]} == (
        pytest.approx(seconds, rel=NEAR)
    )
    steps = 2 * hosts
    rows = {row.key: row for row in profile(ours.trace, by="op").table.rows}
    bound = {"Compute": "FLOPs", "HBM": "HBM"}
    held = [op for op in theirs["roofline"] if op["operation"].startswith("fusion")]
    assert {op["operation"] for op in held} == {"fusion.1", "fusion.2"}
    for op in held:
        row = rows[op["operation"]]
        assert row.bound == bound[op["bound_by"]]
        assert row.of_roof == pytest.approx(op["roofline_efficiency"], rel=NEAR)
        assert row.flops_per_s == pytest.approx(op["measured_flop_rate"] * 1e9, rel=NEAR)
        assert row.bytes_per_s == pytest.approx(op["hbm_bw"] * 2**30, rel=NEAR)
        assert row.intensity == pytest.approx(op["hbm_operational_intensity"], rel=NEAR)
    (flown,), copied = ours.async_ops, theirs["flights"]["copy"]
    assert flown.count * steps == copied["count"]
    assert flown.in_flight_s * steps == pytest.approx(copied["span_ps"] * 1e-12, rel=NEAR)
    assert flown.exposed_s * steps == pytest.approx(copied["exposed_ps"] * 1e-12, rel=NEAR)
    infeed = [p["infeed_percent_average"] for p in theirs["steps"] if "tc_infeed_ms_average" in p]
    ended = [82e-6] * (2 * hosts - 1) + [82e-6 if hosts == 1 else 91e-6]
    share = sum(ours.transfer_s / s for s in ended) / len(ended)
    assert float(infeed[0]) == pytest.approx(100 * share, abs=0.3)  # of one decimal
    for own, host in zip(theirs["memory"], ours.allocators, strict=True):
        peak = own["allocators"]["0"]
        assert int(peak["heapAllocatedBytes"]) == host.allocated_bytes
        assert int(peak["stackReservedBytes"]) == host.reserved_bytes
        assert int(peak["freeMemoryBytes"]) == host.free_bytes
    _same_programs(theirs, ours)


def test_the_memory_of_a_recorded_program_is_that_of_xprof(python: Path, tmp_path: Path) -> None:
    (tmp_path / "vm.xplane.pb").write_bytes(EXAMPLE.read_bytes())
    _same_programs(*_both(python, tmp_path))


def _by_op(found: Profile) -> tuple[dict[str, int], dict[str, float]]:
    """Runs and seconds of all devices and steps."""
    runs, seconds = Counter[str](), Counter[str]()
    for device in found.trace.devices:
        own = busy(device)
        for execution, length in zip(own.execution.tolist(), own.seconds.tolist(), strict=True):
            name = device.work.ops[device.work.which[execution]].name
            runs[name] += 1
            seconds[name] += length
    return dict(runs), dict(seconds)


def _same_programs(theirs: dict[str, Any], ours: Profile) -> None:
    mib = {program.name: program.nbytes / 2**20 for program in ours.programs}
    assert mib
    for own in theirs["memory"]:
        assert own["programs"] == pytest.approx(mib, rel=NEAR)
