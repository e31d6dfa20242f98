"""Plans before the compiler until they are partitioned, and our own part of that time.

It compiles for a TPU that is not attached (`pip install 'rooflight[tpu,program]'`); a child process
lowers and compiles, this one derives what to expect, reads the HLO and matches the two.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from benchmarks.record import Row, row_of
from rooflight.compile.findings.verify import verify
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Plan, from_json

_EXAMPLE = from_json((files("rooflight.compile") / "example_plan.json").read_text())
PLANS = (
    _EXAMPLE,
    replace(
        _EXAMPLE,
        model=load_model("mixtral-8x7b"),
        slice="v5p:4x4x4",
        layout="dp=Z,fsdp=X,ep=X",
        mesh="Z=8,X=8",
        batch=256,
        remat="dots",
    ),
)


def run(*, quick: bool) -> Iterator[Row]:
    for plan in PLANS[: 1 if quick else None]:
        found = [_verified(plan) for _ in range(1 if quick else 3)]
        case = f"{plan.model.name}, {plan.layout} on {plan.slice}"
        yield row_of(f"{case}: in all", [sum(pair) for pair in found])
        yield row_of(f"{case}: ours", [ours for ours, _ in found])


def _verified(plan: Plan) -> tuple[float, float]:
    """Seconds of ours, and of the child that lowers and compiles."""
    with tempfile.TemporaryDirectory() as cache:
        begin = time.perf_counter()
        verdict = verify(plan, cache=Path(cache))
        seconds = time.perf_counter() - begin
    assert not verdict.failed, verdict.findings
    compiling = sum(done.seconds for done in verdict.done)
    return seconds - compiling, compiling
