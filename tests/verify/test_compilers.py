"""Two environments on one program: what another jax and libtpu would change, and nothing else."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rooflight.cli.main import main
from rooflight.compile.findings.baseline import compare_compilers

HAS_COMPILER = all(importlib.util.find_spec(name) for name in ("jax", "libtpu"))
needs_compiler = pytest.mark.skipif(
    not HAS_COMPILER, reason="libtpu, the compiler that is asked, is not installed"
)
_STEPS = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


def build(mesh):
    def like(*axes):
        where = NamedSharding(mesh, P(*axes))
        return jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=where)

    return jax.jit(lambda w, v, x: jnp.tanh(x @ w) @ v), (like(None, "Y"), like("Y"), like("X"))
"""
_ON = ("--on", "v5e:2x2", "--mesh", "X=2,Y=2")


def _document(**schedule: Any) -> dict[str, Any]:
    gather = {"kind": "all_gather", "axes": ["X"], "nbytes": 10**6, "count": 8, "source": "a.py:1"}
    laid = {"form": "async", **{k: gather[k] for k in ("kind", "axes", "nbytes", "count")}}
    facts = {"fusions": 10, "moved_bytes": 0, "collectives": [laid], "waits_s": 0.1} | schedule
    memory, time = facts.pop("memory", 10**9), facts.pop("step_s", 1.0)
    return {
        "slice": "v5e:2x2",
        "collectives": [gather | {"seconds": 1.0}],
        "memory": {"compiler_bytes": memory},
        "time": {"seconds": time},
        "schedule": facts,
    }


def test_two_alike_have_nothing_to_say() -> None:
    found = compare_compilers(_document(), _document())
    assert found.added == found.better == found.changed == ()


def test_a_longer_wait_or_step_is_added_and_a_shorter_one_better() -> None:
    slow, fast = _document(waits_s=0.2, step_s=1.1), _document()
    worse, better = compare_compilers(fast, slow), compare_compilers(slow, fast)
    assert [f.kind for f in worse.added] == ["added_wait", "added_time"]
    assert worse.added[1].seconds == pytest.approx(0.1)
    assert better.added == () and len(better.better) == 2
    assert better.better[1] == "estimated step: 1 s instead of 1.1 s"


def test_another_schedule_or_less_than_a_gigabyte_is_named_and_no_failure() -> None:
    sync = [{"kind": "all_gather", "axes": ["X"], "form": "sync", "nbytes": 10**6, "count": 8}]
    other = _document(fusions=12, moved_bytes=5 * 10**6, collectives=sync, memory=11 * 10**8)
    found = compare_compilers(_document(), other)
    assert found.added == found.better == ()
    assert found.changed == (
        "fusions: 10 -> 12 per step",
        "copies: 0 B -> 5 MB per step",
        "scheduled all-gather over X, async: 8 -> 0 times, 8 MB -> 0 B per step",
        "scheduled all-gather over X, sync: 0 -> 8 times, 0 B -> 8 MB per step",
        "memory: 1 GB -> 1.1 GB per device",
    )


def test_before_the_schedule_collectives_alone_are_compared() -> None:
    early = _document() | {"schedule": None, "time": None, "memory": {"compiler_bytes": None}}
    found = compare_compilers(early, early)
    assert found.added == found.better == found.changed == ()


@pytest.mark.parametrize("compilers", [("a", "b", "c"), ("a", "b", "--baseline")])
def test_a_verdict_is_held_against_one_other(
    compilers: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [w for c in compilers for w in ((c, "x.json") if c[0] == "-" else ("--compiler", c))]
    assert main(["verify", "--fn", "steps.py:build", *_ON, *words]) == 2
    assert "held against one other" in capsys.readouterr().err


def test_what_is_no_environment_is_refused_with_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steps.py").write_text(_STEPS)
    (tmp_path / "bin").mkdir()
    for where in (tmp_path, tmp_path / "none", Path("/bin/false")):
        command = ["verify", "--fn", f"{tmp_path}/steps.py:build", *_ON, "--compiler", str(where)]
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "must be a Python with jax and libtpu" in said and "--compiler older" in said


def _verify(folder: Path, *words: str) -> int:
    (folder / "steps.py").write_text(_STEPS)
    return main(["verify", "--fn", f"{folder}/steps.py:build", *_ON, *words])


@needs_compiler
def test_an_environment_differs_in_nothing_from_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    here = ("--compiler", sys.executable, "--compiler", sys.prefix)
    assert _verify(tmp_path, "--until", "partitioned", "--json", *here) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["baseline"] == {"added": [], "better": [], "changed": []}
    assert document["collectives"] and document["compiles"][0]["outcome"] == "compiled"


@pytest.mark.full
@needs_compiler
def test_an_older_pair_compiles_and_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own jax and libtpu, and none of Rooflight: that comes from here."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    older = tmp_path / "older"
    subprocess.run([sys.executable, "-m", "venv", str(older)], check=True)
    pip = [str(older / "bin" / "pip"), "install", "--quiet"]
    subprocess.run([*pip, "jax[tpu]==0.9.2"], check=True, capture_output=True)
    assert _verify(tmp_path, "--compiler", str(older), "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["versions"] == {"jax": "0.9.2", "jaxlib": "0.9.2", "libtpu": "0.0.37"}
    assert alone["schedule"]["fusions"] and alone["memory"]["compiler_bytes"]
    code = _verify(tmp_path, "--compiler", str(older), "--compiler", sys.prefix, "--json")
    both = json.loads(capsys.readouterr().out)
    assert both["versions"]["jax"] != "0.9.2"
    assert code == (1 if both["baseline"]["added"] else 0)
    rows = [(c["kind"], c["axes"], c["nbytes"]) for c in alone["collectives"]]
    assert rows == [(c["kind"], c["axes"], c["nbytes"]) for c in both["collectives"]]
