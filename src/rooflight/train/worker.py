"""One process of a run: owns devices, and says on stdout what it does, a JSON object a line.

Started by a supervisor, which holds the other end of its stdin: when that closes, the supervisor
is dead and so is this process at once, because nobody would restart its peers. Process 0 writes the
event log. Exit codes: 0 all steps done, 75 stopped when told to and saved, else a failure.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rooflight.errors import RooflightError
from rooflight.train.events import EventLog
from rooflight.train.metrics import TrainMetrics
from rooflight.train.run import COMPILED, FILE, Run, read_run

PREEMPTED, ORPHAN = 75, 76
_HEARTBEAT_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="rooflight.train.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--cpu-devices", type=int)
    args = parser.parse_args()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    run = read_run(args.folder / FILE)
    start_jax(run, args.coordinator, args.count, args.index, args.cpu_devices)
    try:
        return work(run, args.index, args.attempt, _say)
    except RooflightError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return 1


def start_jax(run: Run, coordinator: str, count: int, index: int, cpu_devices: int | None) -> None:
    """Joins the processes of the run; programs compiled before a restart are found again."""
    import jax

    if cpu_devices is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    jax.config.update("jax_compilation_cache_dir", str(run.folder.resolve() / COMPILED))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    jax.distributed.initialize(
        coordinator,
        count,
        index,
        coordinator_bind_address=coordinator if index == 0 else None,  # else every interface
        heartbeat_timeout_seconds=_HEARTBEAT_S,
    )


def save_on_interrupt(say: Callable[[str], None]) -> None:
    """Ctrl-C once saves and ends, as SIGTERM does; twice ends at once.

    A thread counts them, for the main one may be in a compiler for minutes.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGINT, _heard)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def listen() -> None:
        told_to_stop = False
        while number := os.read(heard, 1):
            if number[0] != signal.SIGINT:
                continue
            if told_to_stop:
                os._exit(PREEMPTED)
            told_to_stop = True
            say("told to stop: the state is saved after this step; once more ends it at once")
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()


def _heard(number: int, frame: FrameType | None) -> None:
    """The thread does what is to be done."""


def work(run: Run, index: int, attempt: int, say: Callable[[dict[str, object]], None]) -> int:
    """Trains to the end or until told to stop, under `jax.distributed`."""
    import jax

    from rooflight.train.loop import train

    log = EventLog(run.folder, attempt=attempt) if index == 0 else None
    metrics = TrainMetrics(run, str(jax.devices()[0].device_kind)) if index == 0 else None

    def tell(event: str, **facts: object) -> None:
        if metrics is not None and event == "step":
            facts = metrics.step(facts)
        if metrics is not None and event == "validated":
            metrics.validated(facts)
        if log is not None:
            log.tell(event, **facts)
        say({"event": event, **facts})

    ending = train(run, tell)
    tell(ending.kind, step=ending.step)
    if metrics is not None:
        metrics.close()
    jax.distributed.shutdown()
    return PREEMPTED if ending.kind == "preempted" else 0


def _say(fact: dict[str, object]) -> None:
    print(json.dumps(fact), flush=True)


def _die_with_parent() -> None:
    while os.read(0, 1 << 12):
        pass
    os._exit(ORPHAN)


def end() -> None:
    """Ends at once with the code of `main`: threads of libraries may wait for peers for ever."""
    try:
        code = main()
    except BaseException:
        code = 1
        with contextlib.suppress(OSError):  # of a full disk, too, it ends with a code
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    end()
