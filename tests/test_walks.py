"""How many files one reads to follow a thing: at most twelve, each of them once.

Measured by a profiler hook on real commands: the chain of calls from where a thing comes in to
where it becomes what was asked (`walks`).
"""

import importlib.util
import json
import sys
from itertools import product
from pathlib import Path

import pytest

from rooflight.compile.findings.finding import Finding
from rooflight.compile.hlo.step import read_step
from rooflight.costs.choose import Price

from .cli.command import run
from .service.server_process import start_server
from .service.tiny_model import make_folder
from .walks import Walk, joined, merged, recorded, returned

ROOT = Path(__file__).parents[1]
MOST = 12
PLAN = "plan train llama3.2-1b --on v5e:2x2 --batch 16Ki --seq 2048"
MATMUL = "matmul A[I_X,J]*B[J,K]->C[I_X,K] --dims I=8,J=8,K=8 --on v5e:2x2"
_PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


def build(mesh):
    sizes, split = (1024, 1024), NamedSharding(mesh, P(None, "X"))
    x = jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=split)
    w = jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=NamedSharding(mesh, P("X")))
    return jax.jit(lambda a, b: a @ b), (x, w)
"""


def check(walks: set[Walk]) -> None:
    """Each is short, and the longest is the one that ARCHITECTURE.md shows."""
    assert walks
    for walk in walks:
        assert len(walk) <= MOST and not returned(walk), walk
    shown = " > ".join(
        file.removesuffix(".py") for file in max(walks, key=lambda walk: (len(walk), walk))
    )
    assert f"`{shown}`" in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), shown


def test_a_plan_from_command_to_price() -> None:
    with recorded(Price.__init__) as (found,):
        outcome = run(PLAN.split())
    assert outcome.code == 0
    check(found)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no compiler to ask")
def test_a_compiled_step_from_dump_to_finding(tmp_path: Path) -> None:
    program = tmp_path / "steps.py"
    program.write_text(_PROGRAM)
    with recorded(read_step, Finding.__init__) as (steps, findings):
        outcome = run(["verify", "--fn", f"{program}:build", "--on", "v5e:2x2", "--mesh", "X=4"])
    assert outcome.code == 1, outcome.err
    whole = {joined(step, finding) for step, finding in product(steps, findings)}
    check(whole)


def test_a_request_from_socket_to_token(tmp_path: Path) -> None:
    """Two threads: one hands the request over in `Runner.submit`, where the other takes it."""
    worker, written = Path(__file__).with_name("serve_walk_worker.py"), tmp_path / "walks.json"
    command = (sys.executable, str(worker), str(written))
    with start_server(make_folder(tmp_path / "tiny"), command=command) as server:
        asked = {"model": "tiny", "prompt": "the cat", "max_tokens": 4}
        assert server.client.post("/v1/completions", asked).status == 200
        assert server.end() == 0
    to_queue, to_token = ({tuple(w) for w in walks} for walks in json.loads(written.read_text()))
    assert to_queue and to_token
    check({merged((*a, *b)) for a, b in product(to_queue, to_token)})


def test_a_file_that_is_entered_again_is_told() -> None:
    assert merged(["a.py", "a.py", "b.py"]) == ("a.py", "b.py")
    assert joined(("a.py", "b.py", "c.py"), ("a.py", "b.py", "d.py")) == (
        *("a.py", "b.py", "c.py"),
        "d.py",
    )
    assert returned(joined(("a.py", "c.py"), ("a.py", "b.py", "c.py"))) == ["c.py"]


def test_a_walk_is_the_files_on_the_stack() -> None:
    with recorded(Price.__init__) as (found,):
        outcome = run(MATMUL.split())
        assert outcome.code == 0, outcome.err
    assert {walk[:2] for walk in found} == {("cli/main.py", "cli/hardware/matmul.py")}
