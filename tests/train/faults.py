"""Faults from outside: signals, files and disks; nothing of the product takes part in them.

Each is a function of a running `Launched`; after it the run must go on by itself, or, where the
supervisor died too, when the same command is run again.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rooflight.train.events import losses, read_events

from .launched import Launched

Fault = Callable[[Launched, random.Random], None]
_SAVE_WITHIN_S = 30.0


def kill_worker(run: Launched, rng: random.Random) -> None:
    run.kill_worker(rng)


def kill_supervisor(run: Launched, rng: random.Random) -> None:
    run.kill()
    run.start()


def freeze_worker(run: Launched, rng: random.Random) -> None:
    run.freeze_worker(rng)


def kill_while_saving(run: Launched, rng: random.Random) -> None:
    """As soon as a save has its folder."""
    _until(run, lambda: any(_unfinished(run)))
    time.sleep(rng.random() * 0.05)
    run.kill_worker(rng)


def kill_between_shards(run: Launched, rng: random.Random) -> None:
    """When some files of a save are there and not all."""
    _until(run, lambda: any(p.is_file() for folder in _unfinished(run) for p in _walk(folder)))
    run.kill_worker(rng)


def truncate_shard(run: Launched, rng: random.Random) -> None:
    run.kill()
    path = _shard(run, rng)
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))
    run.start()


def flip_bit(run: Launched, rng: random.Random) -> None:
    run.kill()
    path = _shard(run, rng)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    run.start()


def remove_shard(run: Launched, rng: random.Random) -> None:
    run.kill()
    _shard(run, rng).unlink()
    run.start()


def preempt(run: Launched, rng: random.Random) -> None:
    """SIGTERM: saved and ended, then started again as a cluster would."""
    assert run.popen is not None
    run.popen.send_signal(signal.SIGTERM)
    code = run.end()
    assert code == 75, f"ended with {code}: {run.talk()}"
    run.start()


FAULTS: dict[str, Fault] = {
    "kill a worker": kill_worker,
    "kill the supervisor": kill_supervisor,
    "kill while saving": kill_while_saving,
    "kill between shards": kill_between_shards,
    "truncate a shard": truncate_shard,
    "flip a bit": flip_bit,
    "remove a shard": remove_shard,
    "hang a worker": freeze_worker,
    "preempt": preempt,
}


def check_nothing_lost(run: Launched, whole: Path, *, in_order: bool = True) -> None:
    """Every step once in the curve, each time it was done the same to the last bit.

    Events that found no room on a full disk leave holes in the order, not in the curve.
    """
    expected = losses(whole)
    rows = {e["step"]: e["rows"] for e in read_events(whole) if e["event"] == "step"}
    at = None
    for event in read_events(run.out):
        if event["event"] in ("began", "restored"):
            at = event["step"]
        if event["event"] == "step":
            step = event["step"]
            assert step == at or not in_order, f"step {step} after {at}"
            assert event["loss"] == expected[int(str(step))], f"the loss of step {step} differs"
            assert event["rows"] == rows[step], f"step {step} read other rows"
            at = int(str(step)) + 1
    assert losses(run.out) == expected


def _unfinished(run: Launched) -> Iterator[Path]:
    return (run.out / "checkpoints").glob("*.orbax-checkpoint-tmp*")


def _walk(folder: Path) -> list[Path]:
    """What is there now; files of a save come and go."""
    try:
        return [p for p in folder.rglob("*") if "ocdbt.process" in str(p)]
    except FileNotFoundError:
        return []


def _until(run: Launched, done: Callable[[], bool]) -> None:
    end = time.monotonic() + _SAVE_WITHIN_S
    while not done() and not run.ended and time.monotonic() < end:
        time.sleep(0.001)


def _shard(run: Launched, rng: random.Random) -> Path:
    """A file with arrays of the newest checkpoint, at random."""
    newest = run.checkpoints()[-1]
    return rng.choice(sorted(p for p in newest.rglob("d/*") if p.is_file() and p.stat().st_size))
