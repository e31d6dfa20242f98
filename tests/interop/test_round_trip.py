"""What is exported is imported again as the same plan, or it is refused, or the loss is listed.

Plans are random ones of the planner's own space. Whether Megatron-LM's ranks lie as a plan says is
also worked out here from scratch, by numbering every rank as Megatron-LM does.
"""

import math
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.interop.export import export_plan
from rooflight.interop.framework import Export, load_framework
from rooflight.interop.imported import Imported, name_of
from rooflight.interop.megatron.read_model import shape
from rooflight.interop.read import import_config
from rooflight.interop.roles import OUTER, Roles, read_roles
from rooflight.interop.script.run import read_script
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import Layout
from rooflight.models.presets import load_model, model_names
from rooflight.plan.file.record import Plan
from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.plan.training.search.space import Meshes, every_placement, templates

from .plans import piped, plan_of
from .test_megatron import CHANGES, LAUNCH, said

MODELS = ("llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b")
SLICES = ("h100:8x4", "h100:4x6", "h100:8x32", "gb200:72")
PARTS = (
    "batch",
    "seq",
    "dtype",
    "recipe",
    "remat",
    "stages",
    "schedule",
    "microbatches",
    "virtual",
)
FILES = {"megatron": "run.sh", "torchtitan": "run.toml", "maxtext": "run.yml"}
BATCH = 2**11 * 27


@cache
def layouts(model: str) -> tuple[Layout, ...]:
    """Those of our own program, then those of Megatron-LM."""
    graph = model_graph(load_model(model))
    found = [p for name in ("rooflight", "megatron") for p in templates(graph, FRAMEWORKS[name])]
    return tuple({layout.text: layout for layout in found}.values())


@cache
def meshes(layout: str, model: str, on: str) -> Meshes:
    (found,) = (known for known in layouts(model) if known.text == layout)
    return every_placement(found, parse_slice(on))


@st.composite
def plans(draw: st.DrawFn, *, recipe: str, schedules: Sequence[str]) -> Plan:
    """A layout of the planner's space on one of its meshes, with any pipeline and policy."""
    model, on = draw(st.sampled_from(MODELS)), draw(st.sampled_from(SLICES))
    layout = draw(st.sampled_from(layouts(model)))
    every = meshes(layout.text, model, on)
    assume(every.count)
    mesh = every.mesh(draw(st.integers(0, every.count - 1)))
    plan = replace(
        plan_of(layout.text, str(mesh), on=on, model=model),
        batch=BATCH,
        recipe=recipe,
        zero=1,
        remat=draw(st.sampled_from(("none", "block", "dots"))),
        microbatches=draw(st.sampled_from((1, 2, 4))),
        dtype=draw(st.sampled_from(("bf16", "bf16", "fp8", "mxfp8", "f32"))),
    )
    stages = math.prod(mesh.size(axis) for axis in layout.stages)
    if stages == 1:
        return plan
    schedule = draw(st.sampled_from(schedules))
    virtual = draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    assume(stages * virtual <= plan.model.num_layers)
    count = stages * draw(st.sampled_from((1, 2)))
    return piped(plan, stages=stages, schedule=schedule, microbatches=count, virtual=virtual)


def read_again(export: Export, plan: Plan) -> Imported:
    """The file as it would be written, read by itself; torchtitan keeps sizes elsewhere."""
    name = export.framework.name
    model = None if name == "megatron" else plan.model
    with TemporaryDirectory() as folder:
        path = Path(folder) / FILES[name]
        path.write_text(export.text)
        return import_config([str(path)], framework=name, on=parse_slice(plan.slice), model=model)


def changed(plan: Plan, found: Imported) -> set[str]:
    return {name for name in PARTS if getattr(plan, name) != getattr(found, name)}


def lies(roles: Roles, axes: Iterable[str]) -> dict[str, int]:
    """How many ways some axes have on each physical dim."""
    sizes: dict[str, int] = {}
    for part in (part for axis in axes for part in roles.mesh.segments[axis]):
        sizes[part.dim] = sizes.get(part.dim, 1) * part.size
    return sizes


def same_places(plan: Plan, found: Imported, *, inside: bool = True) -> bool:
    """Axis by axis, since names come back too; behind a switch the order is no place."""
    sides = read_roles(plan.layout, plan.placed()), read_roles(found.layout, found.mesh)
    if sides[0].schemes != sides[1].schemes:
        return False
    ours, theirs = ({a: lies(roles, [a]) for a in roles.schemes} for roles in sides)
    if not inside:
        ours, theirs = (
            {axis: {d: n for d, n in sizes.items() if d in OUTER} for axis, sizes in side.items()}
            for side in (ours, theirs)
        )
    return ours == theirs


# Ranks as Megatron-LM numbers them, from its description alone.


def rank_groups(sizes: Sequence[int], kind: int, world: int) -> list[list[int]]:
    """The groups of ranks that differ in one coordinate only; the first is the innermost."""
    stride = math.prod(sizes[:kind])
    outer = stride * sizes[kind]
    starts = [r for r in range(world) if r % outer < stride]
    return [[start + i * stride for i in range(sizes[kind])] for start in starts]


def touched(groups: list[list[int]], plan: Plan) -> set[tuple[int, int]]:
    """Nodes and leaves that the groups have members in."""
    on = parse_slice(plan.slice)
    spines = next((dim.size for dim in on.dims if dim.name == "spine"), 1)
    leaf = on.num_chips // spines
    node = on.shape[0]
    return {(len({r // node for r in g}), len({r // leaf for r in g})) for g in groups}


def meant(roles: Roles, axes: Iterable[str]) -> set[tuple[int, int]]:
    sizes = lies(roles, axes)
    nodes = math.prod(n for dim, n in sizes.items() if dim in OUTER)
    return {(nodes, sizes.get("spine", 1))}


def ranks_agree(plan: Plan) -> bool:
    """Whether groups of every kind touch as many nodes and leaves as the plan says."""
    roles = read_roles(plan.layout, plan.placed())
    world = roles.mesh.slice.num_chips
    axes = {
        "tensor": roles.serving("tp", "sp", "mp"),
        "context": roles.serving("cp", "ulysses"),
        "shard": roles.serving("fsdp") or roles.serving("dp"),
        "copies": roles.serving("dp") if roles.serving("fsdp") else (),
        "pipe": roles.serving("pp"),
    }
    sizes = [roles.ways(axes[kind]) for kind in axes]
    for number, kind in enumerate(axes):
        if touched(rank_groups(sizes, number, world), plan) != meant(roles, axes[kind]):
            return False
    experts = roles.serving("ep")
    whole = set(experts) & set(axes["tensor"])
    split = 1 if whole else roles.ways(axes["tensor"])
    groups = rank_groups([split, roles.ways(experts), 1], 1, world)
    return not experts or (
        touched(groups, plan) == meant(roles, experts) and _same_experts(sizes, split, roles)
    )


def _same_experts(sizes: Sequence[int], split: int, roles: Roles) -> bool:
    """Experts begin at the innermost rank that is free, so they take context ranks before data."""
    experts = set(roles.serving("ep"))
    free = [sizes[0] // split, sizes[1]]
    taken = [math.prod(roles.mesh.size(a) for a in axes if a in experts) for axes in _inner(roles)]
    left = roles.ways(experts)
    for most, ours in zip(free, taken, strict=True):
        if (most % left and left % most) or ours != min(most, left):
            return False
        left //= ours
    return True


def _inner(roles: Roles) -> tuple[tuple[str, ...], ...]:
    return roles.serving("tp", "sp", "mp"), roles.serving("cp", "ulysses")


@settings(max_examples=300, deadline=None)
@given(plans(recipe="18", schedules=("1f1b", "interleaved")))
def test_a_plan_comes_back_from_megatron_or_is_refused_where_ranks_lie_otherwise(
    plan: Plan,
) -> None:
    try:
        export = export_plan(plan, to="megatron")
    except UsageError as error:
        assert "Megatron-LM cannot run this plan: " in str(error) and error.hint
        assert plan.layout in str(error) or "recipe" in str(error)
        assert not ranks_agree(plan)
        return
    assert ranks_agree(plan)
    found = read_again(export, plan)
    ours = replace(plan, layout=plan.layout.replace("tp=", "sp="))  # a loss that is listed
    assert (found.layout == ours.layout) and same_places(ours, found)
    told = {loss.what.split()[0] for loss in export.losses if loss.is_material}
    assert changed(plan, found) <= told & {"recipe"}
    assert found.zero == plan.zero or not read_roles(plan.layout, plan.placed()).serving("dp", "cp")
    learned = plan.model.num_positions not in (0, max(plan.seq, plan.model.num_positions))
    assert learned or found.model == plan.model or found.model.vocab != plan.model.vocab


@settings(max_examples=150, deadline=None)
@given(plans(recipe="f32", schedules=("gpipe", "1f1b", "interleaved", "zb-v")))
@pytest.mark.parametrize("to", ["torchtitan", "maxtext"])
def test_a_plan_comes_back_from_others_or_what_differs_is_listed(to: str, plan: Plan) -> None:
    virtual = 2 if plan.schedule == "zb-v" else plan.virtual
    export = export_plan(replace(plan, virtual=virtual), to=to)
    told = {loss.what.split()[0] for loss in export.losses if loss.is_material}
    try:
        found = read_again(export, plan)
    except UsageError:
        assert "these" in told
        return
    same = changed(replace(plan, virtual=virtual), found)
    assert same <= told
    if not any("=" in what or what == "mesh" for what in told):
        assert found.layout == plan.layout
        assert same_places(plan, found, inside=to == "torchtitan")


def as_plan(found: Imported) -> Plan:
    plan = plan_of("fsdp=X", f"X={found.on.num_chips}", on=str(found.on))
    parts = {name: getattr(found, name) for name in (*PARTS, "layout", "zero", "model")}
    return replace(plan, **parts, mesh=str(found.mesh))


def assert_comes_back(found: Imported) -> None:
    plan = as_plan(found)
    again = read_again(export_plan(plan, to="megatron"), plan)
    assert again.layout == found.layout and again.mesh == found.mesh
    assert not changed(plan, again) and again.zero == found.zero
    assert shape(again.model) == shape(found.model)


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.sh")), ids=lambda path: path.stem)
def test_a_launch_script_comes_back_from_its_own_export(path: Path) -> None:
    on = "h100:8x128" if path.stem == "deepseek-v3" else "h100"
    assert_comes_back(import_config([str(path)], on=parse_slice(on)))


def shell(path: Path, folder: Path) -> list[str]:
    """The arguments that a shell hands to the launcher, which only writes them down."""
    program = folder / "torchrun"
    program.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$OUT"\n')
    program.chmod(0o755)
    out = folder / "out"
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "OUT": str(out)}
    subprocess.run(["bash", str(path)], env=environment, check=True, cwd=folder)
    return out.read_text().split("\0")[:-1]


def test_what_is_read_is_what_a_shell_would_start(tmp_path: Path) -> None:
    plan = plan_of("dp=Z,sp=Y,ep=Z,pp=P", "P=4,Z=4,Y=8@node", model="deepseek-v3")
    plan = replace(piped(plan, stages=4, schedule="1f1b", microbatches=8), recipe="18")
    exported = tmp_path / "run.sh"
    exported.write_text(export_plan(plan, to="megatron").text)
    for path in (exported, LAUNCH / "gpt3-175b.sh"):
        read = next(p for p in read_script(path.read_text()).programs if p[0] == "torchrun")
        assert list(read[1:]) == shell(path, tmp_path)


@pytest.mark.parametrize("words", CHANGES)
def test_flags_come_back_from_their_own_export(words: str) -> None:
    if "mapping" not in words:  # another order of ranks, which no plan asks for
        assert_comes_back(said(*words.split()))


@pytest.mark.parametrize("name", model_names())
def test_every_model_that_is_written_whole_comes_back(name: str) -> None:
    plan = replace(plan_of("fsdp=X,sp=Y", "X=16,Y=8@node", model=name), recipe="18", seq=2048)
    export = export_plan(plan, to="megatron")
    found = read_again(export, plan)
    if export.is_faithful and found.model.vocab == plan.model.vocab:
        assert found.model == plan.model
    assert found.model.num_layers == plan.model.num_layers


def test_microbatches_that_the_stages_do_not_divide_pass_in_larger_groups() -> None:
    plan = replace(plan_of("pp=P,dp=Z", "P=4,Z=32", model="llama3-8b"), batch=192, recipe="18")
    odd = piped(plan, stages=4, schedule="interleaved", microbatches=6, virtual=2)
    export = export_plan(odd, to="megatron")
    assert "--microbatch-group-size-per-virtual-pipeline-stage 6\n" in export.text
    assert not changed(odd, read_again(export, odd))
    even = replace(odd, microbatches=4, batch=128)
    assert "microbatch-group" not in export_plan(even, to="megatron").text


def test_what_cannot_be_written_is_refused_by_name() -> None:
    plan = replace(plan_of("dp=Z,cp=Y,ep=Z", "Z=16,Y=8@node", model="deepseek-v3"), recipe="18")
    with pytest.raises(UsageError) as caught:
        export_plan(plan, to="megatron")
    assert "dp=Z,cp=Y,ep=Z on mesh Z=16@leaf,Y=8@node becomes dp=ZX,cp=Y,ep=XY" in str(caught.value)
    plan = plan_of("pp=P,dp=Z", "P=4,Z=32", model="llama3-8b")
    odd = piped(plan, stages=4, schedule="interleaved", microbatches=2, virtual=2)
    with pytest.raises(UsageError, match="2 microbatches are not whole groups of 4 or more"):
        export_plan(replace(odd, recipe="18"), to="megatron")
    with pytest.raises(UsageError, match="are not whole sequences"):
        export_plan(replace(plan_of("dp=Z", "Z=128"), batch=64, recipe="18"), to="megatron")
    with pytest.raises(UsageError, match="runs on GPUs"):
        export_plan(plan_of("fsdp=X", "X=16", on="v5e:4x4"), to="megatron")


@pytest.mark.parametrize("name", FRAMEWORKS["maxtext"].remats)
def test_every_remat_policy_of_maxtext_is_written_and_read(name: str) -> None:
    framework = load_framework("maxtext")
    rows = [r for r in framework.tables["remats"] if r.name == name and not r.differs]
    assert len(rows) == 1
    values = {**framework.defaults, **rows[0].settings}
    assert name_of(framework, "remats", values, what="remat", fallback="block") == (name, [])
