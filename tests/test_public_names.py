"""The face of every package: what `__all__` lists is what is there."""

import ast
import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import rooflight
from rooflight.measure.trace.read import EXAMPLE
from rooflight.plan.file.record import from_json

from .cli.command import run


@pytest.mark.parametrize(
    "name",
    [
        "hardware",
        "models",
        "models.graph",
        "algebra",
        "costs",
        "plan",
        "book",
    ],
)
def test_all_lists_exactly_the_re_exported_names(name: str) -> None:
    module = importlib.import_module(f"rooflight.{name}")
    present = {
        n
        for n, value in vars(module).items()
        if not n.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert present == set(module.__all__)
    assert list(module.__all__) == sorted(module.__all__, key=lambda n: (n.upper() != n, n))


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


def test_three_lines_do_what_a_command_does(tmp_path: Path) -> None:
    plan = rooflight.plan_training("llama3-8b", on="v5p:2x2x4", batch="256Ki", seq=4096)
    plan.save(tmp_path / "plan.json")
    assert rooflight.load_plan(tmp_path / "plan.json") == plan
    line = "plan train llama3-8b --on v5p:2x2x4 --batch 256Ki --seq 4096 --json"
    printed = run(line.split())
    assert from_json(printed.out) == plan
    found = rooflight.forecast(
        "llama3-8b", on="v5p:2x2x4", layout="fsdp=16", batch="256Ki", seq=4096
    )
    assert found.step_s == plan.time.step_s and str(found.mesh) == plan.mesh
    assert rooflight.why_not(plan, "fsdp=16").verdict == "wins"
    broken = rooflight.plan_training("llama3-8b", on="v5p:2x2x4", batch="262k", seq=4096)
    assert broken.batch == 64
    with pytest.raises(rooflight.UsageError, match="no placement of tp=16 divides"):
        rooflight.forecast("llama3-8b", on="v5p:2x2x4", layout="tp=16", batch="256Ki", seq=4096)
    assert not rooflight.fit("llama3-70b", on="h100:8", layout="tp=8", batch="64Ki", seq=8192).fits


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
