"""Random schedules in a small pool, with what it evicts kept in host memory.

Run as a process of its own: `python engine_host_worker.py COUNT SEED HOST`. After every step each
block must be owned or free. Prints one JSON object with what was seen.
"""

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices
from engine_schedules_worker import alone, schedule, texts


def main(count: int, seed: int, host_blocks: int) -> dict[str, Any]:
    engine = cases.tiny_engine(replace(cases.TIGHT, host_blocks=host_blocks))
    tier, jobs = engine.scheduler.room.tier, texts()
    assert tier is not None
    wanted = alone(engine, jobs)
    ends: Counter[str] = Counter()
    most = 0
    for i in range(count):
        ends += schedule(engine, jobs, wanted, random.Random(seed + i))
        most = max(most, len(tier))
    stats = engine.stats
    return {
        "ends": ends,
        "restored": stats.restored_blocks,
        "most": most,
        "hits": stats.prefix_hits,
        "preemptions": stats.preemptions,
        "compilations": stats.compilations_after_ready,
    }


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
