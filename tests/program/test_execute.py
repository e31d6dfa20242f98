"""Derivations are executed, not believed: hundreds of random cases on fake devices, every run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

WORKER = Path(__file__).with_name("derivation_worker.py")
EVERYDAY = 300
OPS = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "slice", "einsum"}


def run_workers(seeds: tuple[int, ...], cases: int) -> list[dict[str, object]]:
    """One process a seed, side by side: the fake devices of one keep one core busy."""
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(seed), str(cases)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in seeds
    ]
    tallies: list[dict[str, object]] = []
    for worker in workers:
        out, err = worker.communicate()
        assert worker.returncode == 0, err[-4000:]
        tallies.append(json.loads(out))
    return tallies


def check(tallies: list[dict[str, object]], cases: int) -> None:
    done = 0
    for tally in tallies:
        counts, by_op, wrong = tally["cases"], tally["by_op"], tally["wrong"]
        assert isinstance(counts, int) and isinstance(by_op, dict) and isinstance(wrong, list)
        assert not wrong, "\n".join(str(w) for w in wrong[:5])  # pyright: ignore
        assert set(by_op) == OPS, "the draw no longer reaches every op"  # pyright: ignore
        done += counts
    assert done >= cases


def test_every_strategy_and_gradient_and_reshard_equals_the_unsharded_einsum() -> None:
    check(run_workers((11, 12), EVERYDAY // 2), EVERYDAY)


@pytest.mark.full
@pytest.mark.parametrize("first", [11, 100, 102])
def test_six_thousand_cases(first: int) -> None:
    check(run_workers((first, first + 1), 1000), 2000)


def test_a_wrong_step_is_caught() -> None:
    """The oracle can fail: an all-reduce left out must be seen on every device."""
    script = f"""
import sys
sys.path.insert(0, {str(WORKER.parent)!r})
import derivation_worker as w
import random, numpy as np, jax
from jax.sharding import AxisType, Mesh
from rooflight.algebra.notation import parse_contraction
from rooflight.algebra.contract import strategies
sizes = {{"X": 4}}
mesh = Mesh(np.array(jax.devices()[:4]), ("X",), axis_types=(AxisType.Auto,))
case = parse_contraction("A[I,J_X] * B[J_X,K] -> C[I,K]")
arrays = w.arrays_of(random.Random(0), case.operands, sizes, 4)
steps = next(s.steps for s in strategies(case) if s.steps[-1].op == "all_reduce")
tally = w.Tally()
expected = w.einsum(case, arrays)
w.run([w.Program("cut", steps[:-1], case.operands, arrays, case.result, expected)], mesh, tally)
w.run([w.Program("whole", steps, case.operands, arrays, case.result, expected)], mesh, tally)
print(len(tally.wrong), tally.wrong[0][:3])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "cut"], done.stderr[-2000:]
