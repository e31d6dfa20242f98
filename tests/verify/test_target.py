"""Meshes as the compiler sees them: names, wraparound, and every chip in its place."""

import importlib.util
import itertools
from dataclasses import replace

import numpy as np
import pytest
from plans import small_plan

from rooflight.compile.aot import environment, program
from rooflight.compile.aot.environment import require_compiler
from rooflight.compile.aot.request import PLAIN_COLLECTIVES, CompileRequest
from rooflight.compile.aot.target import make_target
from rooflight.compile.findings import verify
from rooflight.errors import MissingExtraError, UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="devices are those of jax"
)
needs_optax = pytest.mark.skipif(
    importlib.util.find_spec("optax") is None, reason="the program of a plan has its optimizer"
)

MESHES = [
    ("X=4,Y=4", "v5e:4x4"),
    ("X=4@y,Y=4@x", "v5e:4x4"),
    ("X=16,Y=4", "v5p:4x4x4"),
    ("X=16@z+x,Y=4@y", "v5p:4x4x4"),
    ("X=2,Y=8,Z=4", "v5p:4x4x4"),
    ("X=8@x+y2,Y=8", "v5p:4x4x4"),
    ("data=35,fsdp=64,tp=4", "v5p:16x20x28"),
    ("X=2,Y=16", "2*v5e:4x4"),
    ("X=16,Y=2@dcn", "2*v5e:4x4"),
    ("X=8,Y=4", "h100:8x4"),
    ("X=1,Y=1", "v5e:1x1"),
]


def _position(mesh: Mesh, place: tuple[int, ...]) -> tuple[int, ...]:
    """The physical coordinates of a place in the mesh, by the definition of a segment."""
    at = {d.name: 0 for d in mesh.slice.dims}
    for index, parts in zip(place, mesh.segments.values(), strict=True):
        for part in reversed(parts):  # the last segment of an axis changes fastest
            index, digit = divmod(index, part.size)
            at[part.dim] += digit * part.stride
    return tuple(at.values())


@needs_jax
@pytest.mark.parametrize(("text", "on"), MESHES)
def test_every_chip_stands_where_the_mesh_says(text: str, on: str) -> None:
    from rooflight.compile.aot.devices import place_devices

    mesh = parse_mesh(text, on=on)
    target = make_target(mesh)
    shape = (*target.dims.values(), 2)
    grid = np.empty(shape, dtype=object)
    for place in itertools.product(*map(range, shape)):
        grid[place] = place
    placed = place_devices(grid, target.dims, target.axes)
    assert placed.shape == (*mesh.axes.values(), 2)
    for place in itertools.islice(itertools.product(*map(range, placed.shape)), 5000):
        assert placed[place] == (*_position(mesh, place[:-1]), place[-1])


@pytest.mark.parametrize(
    ("on", "wraps"),
    [
        ("v5p:4x4x4", [True, True, True]),
        ("v5p:2x2x2", [False, False, False]),
        ("v5e:4x4", [False, False, False]),
        ("v5e:16x16", [True, True, False]),
        ("v6e:16x8", [True, False, False]),
    ],
)
def test_wraparound_is_always_said(on: str, wraps: list[bool]) -> None:
    chips = make_target(parse_mesh(f"X={np.prod([*_shape(on)])}", on=on))
    assert chips.options["wrap"] == wraps and chips.topology == on


def _shape(on: str) -> list[int]:
    return [int(n) for n in on.partition(":")[2].split("x")]


def test_hosts_are_as_small_as_the_slice_needs() -> None:
    assert make_target(parse_mesh("X=1", on="v5e:1x1")).options["chips_per_host_bounds"] == [
        1,
        1,
        1,
    ]
    assert make_target(parse_mesh("X=4", on="v5e:1x4")).options["chips_per_host_bounds"] == [
        1,
        2,
        1,
    ]
    assert "chips_per_host_bounds" not in make_target(parse_mesh("X=4", on="v5e:2x2")).options


def test_slices_over_dcn_are_counted_and_their_axes_known() -> None:
    target = make_target(parse_mesh("X=8,Y=4", on="2*v5e:4x4"))
    assert target.options["num_slices"] == 2 and target.dcn == {"X": 2}


def test_a_chip_no_compiler_knows_is_refused_with_those_it_does() -> None:
    mesh = parse_mesh("X=4", on="v5e:2x2")
    other = replace(mesh.slice, chip=replace(mesh.slice.chip, name="v99"))
    with pytest.raises(UsageError, match="v99") as caught:
        make_target(replace(mesh, slice=other))
    assert "v5p" in caught.value.hint
    with pytest.raises(UsageError, match="v100"):
        make_target(parse_mesh("X=8", on="v100:8"))


def _asked(on: str, what: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The options of the compiles that a verdict asks for."""
    found: list[dict[str, object]] = []

    def note(requests: list[CompileRequest], **_: object) -> None:
        found.extend(dict(request.options) for request in requests)
        raise UsageError("that is all")

    for module in (program, verify):
        monkeypatch.setattr(module, "compile_all", note)
    with pytest.raises(UsageError, match="that is all"):
        if what == "plan":
            verify.verify(replace(small_plan("fsdp=X", "X=8"), slice=on), until="scheduled")
        else:
            program.verify_program("programs:psum", parse_mesh("X=8", on=on), until="scheduled")
    return found


@pytest.mark.parametrize("what", ["function", pytest.param("plan", marks=needs_optax)])
def test_the_compiler_of_gpus_is_asked_for_no_option_of_that_of_tpus(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _asked("v5e:2x4", what, monkeypatch) == [dict(PLAIN_COLLECTIVES), {}]
    assert _asked("h100:8", what, monkeypatch) == [{}, {}]


def test_a_machine_without_the_compiler_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(environment, "package_version", nothing)
    with pytest.raises(MissingExtraError) as caught:
        require_compiler("tpu")
    assert "pip install" in caught.value.hint and caught.value.exit_code == 2
    monkeypatch.setattr(environment, "find_spec", nothing)
    with pytest.raises(MissingExtraError, match="jax"):
        require_compiler("gpu")


def test_the_environment_of_a_compile_drops_what_would_change_its_result() -> None:
    found = environment.child_environment({"HOME": "h", "XLA_FLAGS": "x", "JAX_PLATFORMS": "tpu"})
    assert "XLA_FLAGS" not in found
    assert (found["HOME"], found["JAX_PLATFORMS"]) == ("h", "cpu")
