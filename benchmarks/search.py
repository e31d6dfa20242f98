"""CPU time of the layout search, beside a fixed piece of work in the same process.

The processor's clock changes with what else runs, so a ratio to that work says more than seconds.
Each search has a process of its own, which has derived nothing yet; quick ones share one.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.record import Row, row_of
from rooflight.dtypes import DTYPES
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.search import run as search
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.run import layouts_of, search_training

POD = "llama3-70b on v5p:16x20x28"
SEARCHES = {
    POD: ("llama3-70b", "v5p:16x20x28", 2240),
    "mixtral-8x7b on h100:8x256": ("mixtral-8x7b", "h100:8x256", 8192),
}
EVERY = "every layout of llama3-70b on v5p:4x4x8"
_EVERY_LAYOUT = ("llama3-70b", "v5p:4x4x8", 256)


def run(*, quick: bool) -> Iterator[Row]:
    for case in (POD, EVERY) if quick else (*SEARCHES, EVERY):
        found = [_timed(case)] if quick else [_in_a_child(case) for _ in range(5)]
        yield row_of(case, [f["seconds"] for f in found])
        ratios = [f["seconds"] / f["work_s"] for f in found]
        yield row_of(f"{case} / fixed work", ratios, "x")
        if case == EVERY:
            rates = [f["layouts"] / f["seconds"] for f in found]
            yield row_of(f"{case}: rate", rates, "layouts/s", better="higher")


def _in_a_child(case: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.search", case]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def _ask(model: str, on: str, batch: int) -> Question:
    return Question(model_graph(load_model(model)), parse_slice(on), batch, 4096, DTYPES["bf16"])


def _timed(case: str) -> dict[str, float]:
    """Seconds of a search, and of the fixed work right before and after it."""
    before = _cpu_s(fixed_work)
    counted: list[int] = []
    seconds = _cpu_s(lambda: counted.append(_searched(case)))
    work_s = (before + _cpu_s(fixed_work)) / 2
    return {"seconds": seconds, "work_s": work_s, "layouts": counted[0]}


def _searched(case: str) -> int:
    """How many layouts were priced; of every layout nothing is skipped."""
    if case in SEARCHES:
        return search_training(_ask(*SEARCHES[case])).num_priced
    question = _ask(*_EVERY_LAYOUT)
    found = search.SearchState(question, count=1)
    for layout in layouts_of(question):
        found.add(layout)
    return found.num_priced


def fixed_work() -> None:
    """Arrays and dictionaries, as a search has them; a tenth of a second."""
    one = np.random.default_rng(0).random(100_000)
    for i in range(100):
        np.minimum(one * one[::-1] + i, one).sum()
        sum({j: j * i for j in range(2000)}.values())


def _cpu_s(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


if __name__ == "__main__":
    print(json.dumps(_timed(sys.argv[1])))
