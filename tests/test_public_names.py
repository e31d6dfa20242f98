"""`import rooflight as rf`: all that is public, and the same numbers as the commands print."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import rooflight
import rooflight as rf
from rooflight.cli.planning import fit, why_not_page
from rooflight.cli.planning.why_not_page import candidate_document
from rooflight.cli.serving import plan_serve, simulate
from rooflight.cli.serving.plan_serve import FleetPage
from rooflight.measure.trace.read import EXAMPLE
from rooflight.plan.file.record import from_json

from .cli.command import run


def test_rooflight_is_the_only_face() -> None:
    """A room's `__init__` is a sentence: what it has is found in its modules."""
    source = Path(rooflight.__file__).parent
    faces = [
        path.relative_to(source)
        for path in source.rglob("__init__.py")
        if len(ast.parse(path.read_text(encoding="utf-8")).body) > 1
    ]
    assert faces == [Path("__init__.py")]


def test_the_face_is_loaded_when_it_is_used() -> None:
    """`import rooflight` loads nothing; every name is there, typed, with a docstring."""
    code = (
        "import sys, rooflight; print(sorted(m for m in sys.modules if m.startswith('rooflight')))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "['rooflight']\n"
    assert list(rooflight.__all__) == sorted(rooflight.__all__) and len(rooflight.__all__) <= 30
    assert set(rooflight.__all__) <= set(dir(rooflight))
    for name in rooflight.__all__:
        assert getattr(rooflight, name).__doc__
    with pytest.raises(AttributeError, match="no_such_name"):
        rooflight.no_such_name  # noqa: B018
    tree = ast.parse(Path(rooflight.__file__).read_text())
    typed = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed - {"import_module", "TYPE_CHECKING"} == set(rooflight.__all__)


_DOCS = Path(__file__).parents[1] / "docs"
FACED = [
    *sorted((_DOCS / "guides").glob("*.md")),
    *(_DOCS / name for name in ("start.md", "notebook.md", "reference/python.md", "../README.md")),
]


def private_names(page: str) -> set[str]:
    """What a page takes from the package that is not public."""
    modules = set(re.findall(r"(?:from|import) (rooflight\.[\w.]+)", page))
    faced = re.findall(r"from rooflight import (.*)", page)
    names = {name.strip(" ()") for line in faced for name in line.split(",")}
    names |= set(re.findall(r"\brf\.(\w+)", page))
    return modules - {"rooflight.notebook"} | names - set(rooflight.__all__)


@pytest.mark.parametrize("path", FACED, ids=lambda path: path.name)
def test_a_page_for_users_has_public_names_only(path: Path) -> None:
    """Guides are commands; what Python they have is run by tests/test_docs.py."""
    assert private_names(path.read_text(encoding="utf-8")) == set()


def test_a_private_name_on_a_page_is_found() -> None:
    page = ">>> from rooflight.costs.choose import choose\n>>> rf.matmul(rf.choose(1))\n"
    page += "from rooflight import load_model, pick"
    assert private_names(page) == {"rooflight.costs.choose", "choose", "pick"}


_JOB: dict[str, Any] = {"on": "v5p:2x2x4", "batch": "256Ki", "seq": 4096}
_TRAFFIC: dict[str, Any] = {
    "rate": 20,
    "isl": "1024~0.5",
    "osl": 128,
    "ttft": "1s",
    "tpot": "30ms",
    "seed": 3,
}


def _flags(asked: Mapping[str, object]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in asked.items())


def _printed(line: str) -> dict[str, Any]:
    done = run([*line.split(), "--json"])
    assert done.out, done.err
    return json.loads(done.out)


def _holds(printed: Mapping[str, Any], record: Mapping[str, object]) -> bool:
    """Whether a command printed all of a record, number by number."""
    return json.loads(json.dumps(record)).items() <= printed.items() and len(record) > 5


@pytest.mark.parametrize(
    "more", [{}, {"rank": "roofline"}, {"batch": "262k", "overlap": "max", "hbm_margin": "0.2"}]
)
def test_a_plan_is_that_of_plan_train(more: dict[str, Any], tmp_path: Path) -> None:
    plan = rf.plan_training("llama3-8b", **_JOB | more)
    plan.save(tmp_path / "plan.json")
    assert rf.load_plan(tmp_path / "plan.json") == plan
    assert from_json(run(f"plan train llama3-8b {_flags(_JOB | more)} --json".split()).out) == plan
    assert (plan.batch, plan.choices[0].what == "batch") == (64, "batch" in more)


@pytest.mark.parametrize("layout", ["fsdp=8", "dp=8", "tp=8,remat=none", "fsdp=16"])
@pytest.mark.parametrize("more", [{}, {"rank": "roofline"}, {"hbm_margin": "0.9"}])
def test_why_not_is_that_of_plan_train(layout: str, more: dict[str, Any]) -> None:
    asked: dict[str, Any] = {**_JOB, "on": "v5p:2x2x2"} | more
    plan = rf.plan_training("llama3.2-1b", **asked)
    found = why_not_page.why_not_document(rf.why_not(plan, layout), plan.overlap)
    assert _holds(_printed(f"plan train llama3.2-1b {_flags(asked)} --why-not {layout}"), found)


def test_a_forecast_is_that_of_the_command() -> None:
    found = rf.forecast("llama3-8b", layout="fsdp=8,tp=2", **_JOB)
    printed = _printed(f"forecast llama3-8b {_flags(_JOB)} --layout fsdp=8,tp=2")
    assert printed["forecast"] == json.loads(json.dumps(candidate_document(found, "sum")))
    with pytest.raises(rf.UsageError, match="no placement of tp=16 divides"):
        rf.forecast("llama3-8b", layout="tp=16", **_JOB)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"layout": "tp=8,dp=2", "microbatches": 2, "framework": "megatron", "zero": 1},
        {"layout": "fsdp=X,pp=Y", "mesh": "X=4,Y=4", "microbatches": 8, "schedule": "interleaved"},
        {"layout": "fsdp=16", "recipe": "18", "remat": "none"},
        {"layout": "fsdp=16", "solve": "seq"},
    ],
)
def test_what_fits_is_what_the_command_says(asked: dict[str, Any]) -> None:
    job: dict[str, Any] = {"on": "v5e:4x4", "batch": "1Mi", "seq": "4k"} | asked
    found = rf.fit("llama3-8b", **job)
    assert _holds(_printed(f"fit llama3-8b {_flags(job)}"), fit.document("llama3-8b", found))


def test_a_fleet_is_that_of_plan_serve() -> None:
    asked: dict[str, Any] = _TRAFFIC | {
        "on": "v5e:2x4,h100:1",
        "dtypes": "int8",
        "hit_rate": 0.5,
        "requests": 300,
    }
    plan = rf.plan_serving("llama3-8b", prices={"h100": 3}, **asked)
    hours = plan.hourly([5, 20])
    more = plan.verdict, plan.runner_up(), plan.doubled(), hours, plan.why_not("tp=2")
    page = FleetPage("llama3-8b", plan, *more)
    flags = "--price h100=3 --sensitivity --hourly 5,20 --why-not tp=2"
    printed = _printed(f"plan serve llama3-8b {_flags(asked)} {flags}")
    assert _holds(printed, plan_serve.document(page))
    assert plan.best and printed["fleet"]["replicas"] == plan.best.replicas


@pytest.mark.parametrize("policy", ["continuous", "static", "disaggregated"])
def test_a_simulation_is_that_of_the_command(policy: Any) -> None:
    asked: dict[str, Any] = _TRAFFIC | {
        "on": "v5e:2x4",
        "requests": 200,
        "replicas": 2,
        "policy": policy,
    }
    asked |= {"prefix_tokens": 128, "prefixes": 3, "rows": 64, "dtypes": "int8"}
    found = rf.simulate("llama3-8b", **asked)
    assert _holds(_printed(f"simulate llama3-8b {_flags(asked)}"), simulate.summary(found))


def test_a_collective_and_a_matmul_are_those_of_the_commands() -> None:
    place: dict[str, Any] = {"on": "v5e:4x4", "mesh": "X=4,Y=4"}
    found = rf.collective("all_gather", "34MB", **place, axes="X")
    assert _holds(
        _printed(f"collective all-gather --bytes 34MB {_flags(place)} --axes X"), asdict(found)
    )
    time = rf.roofline(8, 4096, 4096, on="v5e", dtype="int8", memory="vmem", pad=True)
    line = "roofline --on v5e --dtype int8 --memory vmem --pad --matmul 8x4096x4096"
    (shown,) = _printed(line)["matmuls"]
    for name in ("lower_s", "upper_s", "binds", "utilisation"):
        assert shown[name] == getattr(time, name)
    text, dims = "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]", {"I": 8192, "J": 8192, "K": 32768}
    best = rf.matmul(text, **place, dims=dims).best
    words = ["matmul", text, *_flags(place).split(), "--dims", "I=8192,J=8192,K=32768", "--json"]
    (one,) = json.loads(run(words).out)["contractions"]
    assert one["best"]["expected_s"] == best.expected_s
    assert one["best"]["network_bytes"] == best.network_bytes


def test_dumps_and_traces_are_read() -> None:
    dump = Path(__file__).parent / "verify" / "dumps" / "fsdp"
    assert rooflight.read_hlo(dump).collectives
    assert rooflight.read_trace(EXAMPLE).devices


def test_the_step_of_a_plan_lowers_on_the_devices_of_this_process() -> None:
    code = (
        "import rooflight as rf\n"
        "plan = rf.plan_training('llama3.2-1b', on='v5e:2x2', batch='16Ki', seq=2048)\n"
        "step, arguments = rf.build_train_step(plan)\n"
        "print(plan.layout, 'sdy.mesh' in step.lower(*arguments).as_text())"
    )
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    printed = subprocess.check_output([sys.executable, "-c", code], env=os.environ | flags)
    assert printed.decode().endswith(" True\n")


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no compiler to ask")
@pytest.mark.parametrize("on", ["v5e:2x4", "tpu7x:1x2x2"])
def test_a_function_of_this_process_is_judged_as_one_of_a_file(on: str, tmp_path: Path) -> None:
    """Same collectives, findings, names of arguments and lines; a chip may be two devices."""
    (tmp_path / "steps.py").write_text(_STEPS)
    code = (
        "import json, sys, jax, steps\n"
        "import rooflight as rf\n"
        "from rooflight.compile.findings.document import verdict_document\n"
        "where = {'on': sys.argv[1], 'mesh': 'X=2,Y=%d' % (4 if 'v5e' in sys.argv[1] else 2)}\n"
        "there = rf.verify_function('steps.py:build', **where)\n"
        "here = rf.verify_function(steps.step, *steps.LIKE, shardings=steps.SPLIT, **where)\n"
        "for one in (there, here):\n"
        "    print(json.dumps(verdict_document(one), default=str))\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code, on],
        cwd=tmp_path,
        env=environment | {"ROOFLIGHT_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    there, here = (json.loads(line) for line in done.stdout.splitlines())
    assert here["fn"] == "step" and there["findings"]
    for name in ("slice", "mesh", "findings", "least_s", "flops", "memory", "arguments"):
        assert here[name] == there[name], name
    for one in (here, there):
        for row in one["collectives"]:
            del row["op_name"]
    assert here["collectives"] == there["collectives"] != []


_STEPS = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

LIKE = (
    {name: jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16) for name in ("w", "v")},
    jax.ShapeDtypeStruct((8192, 4096), jnp.bfloat16),
)
SPLIT = ({"w": P("X", "Y"), "v": None}, P("X"))


def step(params, x):
    hidden = jax.lax.with_sharding_constraint(x @ params["w"], P("X"))
    return hidden @ params["v"]


def build(mesh):
    jax.set_mesh(mesh)
    put = lambda a, spec: jax.ShapeDtypeStruct(
        a.shape, a.dtype, sharding=NamedSharding(mesh, spec or P())
    )
    params, x = LIKE
    split = {name: put(a, SPLIT[0][name]) for name, a in params.items()}
    return jax.jit(step), (split, put(x, SPLIT[1]))
"""
