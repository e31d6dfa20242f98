"""Whose line a verdict names, in which mesh a program is traced, and what is no program at all."""

import importlib.util
from pathlib import Path

import pytest

import rooflight as rf
from rooflight.cli.main import main
from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.findings.finding import Finding, called
from rooflight.compile.hlo.parse import parse_module

HAS_COMPILER = all(importlib.util.find_spec(name) for name in ("jax", "libtpu"))
needs_compiler = pytest.mark.skipif(
    not HAS_COMPILER, reason="libtpu, the compiler that is asked, is not installed"
)

_FLAX = "/v/lib/python3.12/site-packages/flax/linen/linear.py"
_OURS = "/v/lib/python3.12/site-packages/rooflight/compile/aot/child.py"
_OWN_PROGRAM = "/v/lib/python3.12/site-packages/rooflight/program/model/layer.py"
_TEXT = """HloModule m, buffer_donor={{ (1, {{}}) }}, entry_computation_layout={{(f32[8]{{0}})}}

FileNames
1 "{0}"
2 "{1}"
3 "{2}"
4 "{3}"

FileLocations
1 {{file_name_id=1 line=74}}
2 {{file_name_id=2 line=12}}
3 {{file_name_id=3 line=30}}
4 {{file_name_id=4 line=422}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}
3 {{file_location_id=3 parent_frame_id=3}}
4 {{file_location_id=4 parent_frame_id=4}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  ROOT %n = f32[8]{{0}} negate(%p), metadata={{op_name="f" stack_frame_id=4}}
}}
"""


def test_the_line_is_the_innermost_outside_installed_packages_and_the_next_is_its_caller() -> None:
    module = parse_module(_TEXT.format(_OURS, "/me/train.py", "/me/model.py", _FLAX))
    root = module.computations[module.entry].root
    assert module.source(root) == "/me/model.py:30" and module.caller(root) == "/me/train.py:12"
    (finding,) = called([Finding("wide", "w", "f", where="/me/model.py:30")], module)
    assert finding.caller == "/me/train.py:12"
    assert module.donated == {1}


def test_where_all_is_installed_the_innermost_of_all_is_named() -> None:
    module = parse_module(_TEXT.format(_OURS, _OURS, _OWN_PROGRAM, _OWN_PROGRAM))
    assert module.source(module.computations[module.entry].root) == f"{_OWN_PROGRAM}:422"


_IN_A_SCAN = (
    _TEXT.replace("parent_frame_id=4", "parent_frame_id=1")
    .replace(
        "ENTRY",
        """%layer (q: f32[8]) -> f32[8] {{
  %q = f32[8]{{0}} parameter(0)
  ROOT %m = f32[8]{{0}} negate(%q), metadata={{op_name="g" stack_frame_id=4}}
}}

ENTRY""",
    )
    .replace(
        'negate(%p), metadata={{op_name="f" stack_frame_id=4}}',
        'call(%p), to_apply=%layer, metadata={{op_name="f" stack_frame_id=3}}',
    )
)


def test_a_function_of_a_package_is_at_the_line_that_calls_it_as_it_is_once_inlined() -> None:
    module = parse_module(_IN_A_SCAN.format(_OURS, "/me/train.py", "/me/model.py", _FLAX))
    inside = module.computations["layer"].root
    assert module.source(inside) == "/me/model.py:30" and module.caller(inside) == ""
    whole = _IN_A_SCAN.format(_OURS, _OWN_PROGRAM, _OWN_PROGRAM, _FLAX)
    assert parse_module(whole).source(inside) == f"{_FLAX}:422"
    calls = "%o = f32[8]{0} call(%p), to_apply=%layer, metadata={stack_frame_id=2}\n  ROOT %n"
    both = _IN_A_SCAN.format(_OURS, "/me/train.py", "/me/model.py", _FLAX)
    module = parse_module(both.replace("ROOT %n", calls))
    assert module.source(inside) == f"{_FLAX}:422"  # two lines call it: neither is the one


_STEPS = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import neighbour


def _like(mesh, *axes):
    return jax.ShapeDtypeStruct((512, 512), "bfloat16", sharding=NamedSharding(mesh, P(*axes)))


def broken(mesh):
    return jax.jit(lambda w, x: neighbour.project(x, w)), (_like(mesh), _like(mesh, "X"))


def explicit(mesh):
    def step(w, x):
        y = jnp.einsum("bd,df->bf", x, w)
        assert jax.typeof(y).sharding.spec == P("X", "Y")
        return jax.reshard(y, P("X", None))

    return jax.jit(step), (_like(mesh, None, "Y"), _like(mesh, "X", None))


def in_context(mesh):
    def step(w, x):
        return jax.lax.with_sharding_constraint(x @ w, P("X", "Y"))

    return jax.jit(step), (_like(mesh), _like(mesh, "X"))
"""
_NEIGHBOUR = "def project(x, w):\n    return x @ w[:100]\n"


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the name of a module of Python's own, and one beside it."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "random.py").write_text(_STEPS)
    (tmp_path / "neighbour.py").write_text(_NEIGHBOUR)
    return tmp_path / "random.py"


def _verify(path: Path, name: str, *more: str) -> int:
    where = ["--on", "v5e:2x2", "--mesh", "X=2,Y=2", "--until", "partitioned"]
    return main(["verify", "--fn", f"{path}:{name}", *where, *more])


@needs_compiler
def test_what_cannot_be_traced_is_a_wrong_request_with_its_own_line_and_that_of_its_caller(
    steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _verify(steps, "broken") == 2
    line = _STEPS.splitlines().index(next(t for t in _STEPS.splitlines() if "project" in t)) + 1
    said = capsys.readouterr().err
    place = f"{steps.parent}/neighbour.py:2, called from {steps}:{line}"
    assert f"random:broken cannot be traced: {place}: TypeError: dot_general" in said


@needs_compiler
@pytest.mark.parametrize("name, flags", [("explicit", ["--explicit"]), ("in_context", [])])
def test_a_builder_is_traced_with_the_mesh_set_and_the_axes_asked_for(
    steps: Path, name: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _verify(steps, name, *flags) == 0
    assert "no finding" in capsys.readouterr().out


_CELL = """
def project(h, w):
    return jnp.einsum("bf,fd->bd", h, w)

def auto(w_in, w_out, x):
    return project(jax.nn.gelu(x @ w_in), w_out)

def explicit(w_in, w_out, x):
    hidden = jax.nn.gelu(x @ w_in)
    assert jax.typeof(hidden).sharding.spec == P("X", "Y")
    return jnp.einsum("bf,fd->bd", hidden, w_out, out_sharding=P("X", None))
"""


@needs_compiler
def test_a_cell_is_verified_on_auto_and_explicit_axes_and_its_lines_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, PartitionSpec

    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    name = "/tmp/ipykernel_7/1234.py"  # what IPython calls a cell
    cell: dict[str, object] = {"jax": jax, "jnp": jnp, "P": PartitionSpec}
    exec(compile(_CELL, name, "exec"), cell)
    shapes = [(4096, 16384), (16384, 4096), (8192, 4096)]
    like = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    split = [PartitionSpec(None, "Y"), PartitionSpec(), PartitionSpec("X")]

    def seen(function: str, mesh: object) -> ProgramVerdict:
        return rf.verify_function(
            cell[function],  # pyright: ignore[reportArgumentType]
            *like,
            on="v5e:2x4",
            mesh=mesh,
            shardings=tuple(split),
            until="partitioned",
        )

    (finding,) = seen("auto", "X=2,Y=4").findings
    assert (finding.kind, finding.where, finding.caller) == ("replicated", f"{name}:3", f"{name}:6")
    split[1] = PartitionSpec("Y", None)
    types = (AxisType.Explicit, AxisType.Explicit)
    assert seen("explicit", AbstractMesh((2, 4), ("X", "Y"), axis_types=types)).findings == ()


@needs_compiler
def test_a_live_function_that_donates_keeps_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax
    from jax.sharding import PartitionSpec

    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))

    def write(cache: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(cache, new[:, None], 5, 1)

    shapes = (16, 1 << 15, 8, 128), (16, 8, 128)
    like = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]
    split = PartitionSpec("X", None, "Y"), PartitionSpec("X", "Y")
    for function, kinds in ((write, ["not_donated"]), (jax.jit(write, donate_argnums=0), [])):
        verdict = rf.verify_function(
            function, *like, on="v5e:2x4", mesh="X=2,Y=4", shardings=split, until="partitioned"
        )
        assert [f.kind for f in verdict.findings] == kinds
