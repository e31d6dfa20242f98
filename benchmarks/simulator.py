"""Ten million requests over a day on a hundred replicas, and the memory they take."""

import resource
import time
from collections.abc import Iterator
from itertools import pairwise

from benchmarks.record import Row
from rooflight.batching.request import Limits
from rooflight.plan.serving.simulate.arrivals import RandomTraffic, parse_lengths
from rooflight.plan.serving.simulate.run import simulate

WHOLE, QUICK = 10_000_000, 100_000
DAY_S = 86_400
MEMORY = "memory that the last nine tenths added"
PACE = "last tenth / second tenth of the requests"


class RoofCost:
    """A roofline: reads against FLOPs, with bends; about an 8B model on eight chips."""

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        flops_s = 2e-5 * (decode_rows + prefill_tokens) + 1e-9 * (prefill_kv_tokens + kv_tokens)
        return 1e-3 + max(5e-3 + 2e-8 * kv_tokens, flops_s) + max(0.0, 1e-8 * kv_tokens - 1e-3)

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return 0.0


def run(*, quick: bool) -> Iterator[Row]:
    count = QUICK if quick else WHOLE
    marks: list[tuple[float, int]] = []  # CPU seconds and bytes, at each tenth

    def watch(came: int, done: int) -> None:
        if came * 10 // count == len(marks):
            marks.append((time.process_time(), _peak_bytes()))

    lengths = parse_lengths("1024~0.8", what="in"), parse_lengths("256~0.6", what="out")
    day = RandomTraffic(WHOLE / DAY_S, *lengths, count)
    sizes = Limits(
        max_rows=64, max_step_tokens=2048, num_blocks=4000, block_tokens=64, max_waiting=10**9
    )
    cpu, clock = time.process_time(), time.perf_counter()
    found = simulate(day.arrivals(), cost=RoofCost(), limits=sizes, replicas=100, watch=watch)
    marks.append((time.process_time(), _peak_bytes()))
    assert found.num_finished == count and len(marks) == 11
    cpu_s, clock_s = marks[-1][0] - cpu, time.perf_counter() - clock
    yield Row(f"{count:,} requests, CPU time of one core", cpu_s, "s")
    yield Row(f"{count:,} requests, time on the clock", clock_s, "s")
    yield Row("a request, CPU time", cpu_s / count, "s")
    tenths = [after[0] - before[0] for before, after in pairwise(marks)]
    yield Row(PACE, tenths[-1] / tenths[1], "x")
    yield Row(MEMORY, marks[-1][1] - marks[1][1], "B")


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
