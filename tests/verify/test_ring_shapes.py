"""What docs/attention.md says of ring attention: the forecast's table, and the compiler's."""

import importlib.util

import pytest
from ring_shapes import DOC, FORMS, HERE, MESH, POSITIONS, block, compiled, forecast_table

from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation

needs_libtpu = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jax", "libtpu")),
    reason="libtpu, the compiler that is asked, is not installed",
)


def test_the_page_has_the_shapes_from_which_a_ring_is_forecast_to_win() -> None:
    assert block(DOC.read_text(), "forecast").splitlines() == list(forecast_table())


def test_the_page_has_what_the_compiler_says_of_a_ring() -> None:
    said = block(DOC.read_text(), "compiled")
    assert all(f"\n| {positions:,} | " in said for positions in POSITIONS) and "libtpu" in said
    steps = block(DOC.read_text(), "step")
    assert "| `cp=8` | " in steps and "| `cp=8:ring` | " in steps and "libtpu" in steps


@needs_libtpu
def test_a_ring_has_a_kernel_between_start_and_done_of_its_hops() -> None:
    """All but three: the last hop of dk and dv, and the one before of one of them."""
    arguments = {"form": "ring", "positions": 1024}
    request = CompileRequest("claims:ring_attention", MESH, arguments, folder=str(HERE))
    done = compile_all([request], jobs=1)[0]
    assert done.is_good, done.words
    step = read_compilation(done)
    assert {(c.kind, c.axes) for c in step.collectives} == {("permute", ("Y",))}
    kernels = [w.name for w in step.work if w.name.startswith("splash")]
    assert len(kernels) == 2 + 3 * 2
    alone = [c for c in step.collectives if not set(c.overlapped or ()) & set(kernels)]
    assert len(alone) == 3
    assert sum((c.count or 0) for c in step.collectives) == 2 * (3 + 3 + 4)


@needs_libtpu
@pytest.mark.full
@pytest.mark.parametrize("positions", [1024, 4096])
def test_a_kernel_takes_less_than_half_of_what_plain_jax_does(positions: int) -> None:
    ring, gathered, plain = (compiled(positions, form).time for form in FORMS)
    assert gathered.network["Y"].hidden_s == 0 and gathered.busy_s["kernels"] > 0
    assert gathered.seconds < 0.5 * plain.seconds
    assert ring.network["Y"].exposed_s < gathered.network["Y"].exposed_s
