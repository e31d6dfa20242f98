"""What we claim of our programs, asked of the compiler: matmuls between start and done."""

import importlib.util
from pathlib import Path

import pytest

from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.compile.hlo.step import CompiledStep
from rooflight.hardware.mesh import parse_mesh

HERE = Path(__file__).parent
ROWS, COLS = 4096, 8192  # of the result, as in claims.py, which needs jax
SLICES = [
    ("v5e:4x4", "X=4,Y=4"),
    pytest.param("v5p:4x4x4", "X=16,Y=4", marks=pytest.mark.full),
]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)


def compiled(build: str, on: str, mesh: str, *, is_collective: bool, cache: Path) -> CompiledStep:
    request = CompileRequest(
        f"claims:{build}",
        parse_mesh(mesh, on=on),
        {"is_collective": is_collective},
        folder=str(HERE),
    )
    done = compile_all([request], cache=cache)[0]
    assert done.is_good, done.words
    return read_compilation(done)


# The compiler starts the last half block of a scattering matmul only when its product is done.
EXPOSED = {"gather_matmul": 0, "matmul_scatter": 1}


@pytest.mark.parametrize(("on", "mesh"), SLICES)
@pytest.mark.parametrize("build", list(EXPOSED))
def test_a_collective_matmul_has_a_product_between_start_and_done(
    tmp_path: Path, build: str, on: str, mesh: str
) -> None:
    step = compiled(build, on, mesh, is_collective=True, cache=tmp_path)
    matmuls = {w.name for w in step.work if w.flops}
    permutes = [c for c in step.collectives if c.kind == "permute"]
    assert len(permutes) == len(step.collectives) == 4
    assert {c.axes for c in permutes} == {("Y",)}
    exposed = [c.name for c in permutes if not matmuls & set(c.overlapped or ())]
    assert len(exposed) == EXPOSED[build]


@pytest.mark.parametrize(("on", "mesh"), SLICES)
@pytest.mark.parametrize("build", list(EXPOSED))
def test_the_plain_form_has_no_product_beside_its_collective(
    tmp_path: Path, build: str, on: str, mesh: str
) -> None:
    step = compiled(build, on, mesh, is_collective=False, cache=tmp_path)
    first, *rest = step.collectives
    kinds = {"gather_matmul": "all_gather", "matmul_scatter": "reduce_scatter"}
    assert first.kind == kinds[build]
    assert first.is_exposed
    matmuls = {w.name for w in step.work if w.flops}
    assert not any(matmuls & set(c.overlapped or ()) for c in step.collectives)
    # The compiler pads a scatter; a permute moves (n - 1)/n of what was added back in place.
    added = first.nbytes - 2 * ROWS * COLS
    assert [(c.kind, c.nbytes) for c in rest] == ([("permute", added * 3 // 4)] if added else [])
    assert bool(added) == (build == "matmul_scatter")
