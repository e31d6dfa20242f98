"""What docs/attention.md says of ring attention: the forecast's table, and the compiler's."""

import importlib.util

import pytest
from ring_shapes import DOC, HERE, MESH, POSITIONS, block, compiled, forecast_table

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


@needs_libtpu
def test_a_ring_has_a_loop_of_matmuls_between_start_and_done_of_its_hops() -> None:
    """All but the last hop of gradients, keys and values each: nothing is left beside it."""
    arguments = {"is_collective": True, "positions": 1024}
    request = CompileRequest("claims:ring_attention", MESH, arguments, folder=str(HERE))
    done = compile_all([request], jobs=1)[0]
    assert done.is_good, done.words
    step = read_compilation(done)
    assert {(c.kind, c.axes) for c in step.collectives} == {("permute", ("Y",))}
    inside = {w.name for w in step.work if w.flops}
    alone = [
        c
        for c in step.collectives
        if not any(n in inside or n.startswith("while") for n in c.overlapped or ())
    ]
    assert len(alone) == 2
    assert sum((c.count or 0) for c in step.collectives) == 2 * (3 + 3 + 4)


@needs_libtpu
@pytest.mark.full
@pytest.mark.parametrize("positions", [1024, 4096])
def test_a_ring_hides_nine_tenths_of_what_gathered_keys_wait_for(positions: int) -> None:
    ring, gathered = (compiled(positions, is_ring=is_ring).time for is_ring in (True, False))
    assert gathered.network["Y"].hidden_s == 0
    assert ring.network["Y"].exposed_s < 0.15 * gathered.network["Y"].exposed_s
    assert 0.9 < ring.seconds / gathered.seconds < 1.1
