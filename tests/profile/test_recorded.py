"""A trace recorded here and now: steps of a real program on devices made of this host's cores."""

import subprocess
import sys
from pathlib import Path

import pytest

from rooflight.measure.trace.overlap import overlaps
from rooflight.measure.trace.read import read_trace
from rooflight.measure.trace.table import step_table

_PROGRAM = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
a = jax.device_put(jnp.ones((256, 512)), NamedSharding(mesh, P(None, "x")))
b = jax.device_put(jnp.ones((512, 128)), NamedSharding(mesh, P("x", None)))

@jax.jit
def step(a, b):
    with jax.named_scope("block"), jax.named_scope("product"):
        return jnp.tanh(a @ b)

step(a, b).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for number in range(3):
        with jax.profiler.StepTraceAnnotation("train", step_num=40 + number):
            step(a, b).block_until_ready()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("recorded")
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    flags = "--xla_force_host_platform_device_count=2"
    subprocess.run(
        [sys.executable, str(program), str(folder)],
        check=True,
        capture_output=True,
        timeout=900,
        env={"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    return folder


def test_a_trace_of_this_jax_is_read_with_its_steps_scopes_lines_and_flops(folder: Path) -> None:
    trace = read_trace(folder)
    assert [device.name for device in trace.devices] == ["CPU:0", "CPU:1"]
    table = step_table(trace, by="layer")
    assert table.steps == ("40", "41", "42")
    (product,) = [row for row in table.rows if row.key == "block/product"]
    assert product.flops == 2 * 256 * (512 / 2) * 128
    line = 1 + next(at for at, text in enumerate(_PROGRAM.splitlines()) if "a @ b" in text)
    assert any(row.key.endswith(f"program.py:{line}") for row in step_table(trace, by="line").rows)
    assert {flown.kind for flown in overlaps(trace)} == {"all", "all-reduce"}
