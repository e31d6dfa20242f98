"""A spec that a fix proposes has an entry for every dim of the array that it is for."""

import ast
import math
import re

from hypothesis import given
from hypothesis import strategies as st

from rooflight.compile.aot.arguments import Argument, spec_text
from rooflight.compile.findings.finding import Finding
from rooflight.compile.findings.surprises import find_surprises
from rooflight.compile.findings.waste import find_replicated
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import read_step
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.mesh import parse_mesh

AXES = {"X": 2, "Y": 4}
MESH = parse_mesh("X=2,Y=4", on="v5e:2x4")
Spec = tuple[tuple[str, ...], ...]


def _entries(fix: str) -> int:
    """The entries of the PartitionSpec in a fix."""
    found = re.search(r"P\([^:]*\)", fix)
    assert found, fix
    call = ast.parse(found[0], mode="eval").body
    assert isinstance(call, ast.Call)
    return len(call.args)


@st.composite
def _arguments(draw: st.DrawFn) -> Argument:
    """An array of one to five dims, split over X and perhaps Y."""
    dims = tuple(8 * n for n in draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    places = range(len(dims))
    at = {"X": draw(st.sampled_from(places)), "Y": draw(st.sampled_from((*places, -1)))}
    spec = tuple(tuple(axis for axis in AXES if at[axis] == place) for place in places)
    return _argument("w", dims, spec)


def _argument(name: str, dims: tuple[int, ...], spec: Spec | None) -> Argument:
    nbytes = 2 * math.prod(dims)
    ways = math.prod(AXES[axis] for dim in spec or () for axis in dim)
    return Argument(name, "bf16", dims, nbytes, nbytes // ways, spec, "", {"X": None})


def _returned(dims: tuple[int, ...], flat: bool) -> list[str]:
    """A program that gathers an array over X, perhaps as one row, and returns it."""
    whole = (math.prod(dims),) if flat else dims
    given = (whole[0] // 2, *whole[1:])

    def text(of: tuple[int, ...]) -> str:
        return f"bf16[{','.join(map(str, of))}]"

    return [
        "HloModule returned, num_partitions=8",
        f"ENTRY %main (x: {text(given)}) -> {text(dims)} {{",
        f'  %x = {text(given)} parameter(0), metadata={{op_name="x"}}',
        f"  %made = {text(given)} negate(%x)",
        f"  %gathered = {text(whole)} all-gather(%made), channel_id=1,"
        " replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}, use_global_device_ids=true",
        f"  ROOT %out = {text(dims)} reshape(%gathered)",
        "}",
    ]


def _found(arguments: list[Argument], dims: tuple[int, ...], flat: bool) -> list[Finding]:
    module = parse_module("\n".join(_returned(dims, flat)))
    step = read_step(module, axes=MeshAxes(AXES, {}))
    found = find_surprises(step, arguments, MESH, AXES)
    return [finding for finding in found if finding.kind == "returned_whole"]


@given(_arguments(), st.booleans())
def test_what_is_returned_whole_is_given_a_spec_of_its_own_rank(
    argument: Argument, flat: bool
) -> None:
    assert argument.spec is not None
    on_device = tuple(
        n // 4 if "Y" in dim else n for n, dim in zip(argument.dims, argument.spec, strict=True)
    )
    rows = math.prod(argument.dims)
    split = tuple(sorted(argument.axes))
    others = [  # as many bytes, in fewer dims and in more
        _argument("row", (rows,), (split,)),
        _argument("deep", (1, 1, 1, 1, 1, *argument.dims), ((),) * 5 + argument.spec),
    ]
    for before in ([], [o for o in others if len(o.dims) != len(on_device)]):
        (finding,) = _found([*before, argument], on_device, flat)
        assert _entries(finding.fix) == len(on_device)
        assert spec_text(argument.spec) in finding.fix
        assert _found(before, on_device, flat) == []


@given(_arguments())
def test_what_is_stored_whole_is_given_a_spec_of_its_own_rank(argument: Argument) -> None:
    free: Spec = tuple(tuple(a for a in dim if a != "X") for dim in argument.spec or ())
    whole = _argument("w", argument.dims, free)
    for finding in find_replicated([whole], load_chip("v5e"), AXES):
        if "no dim of it divides" not in finding.fix:
            assert _entries(finding.fix) == len(argument.dims)
