"""The event log: lines of a crash are passed over, and goodput adds up by hand."""

import json
import os
import struct
from pathlib import Path

import pytest

from rooflight.train.events import EventLog, goodput, losses, read_events
from rooflight.train.metrics import SummaryWriter


def _write(folder: Path, *events: dict[str, object]) -> None:
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))


def test_steps_done_again_do_not_count_twice(tmp_path: Path) -> None:
    def step(time: float, step: int, attempt: int, loss: float) -> dict[str, object]:
        found: dict[str, object] = {"time": time, "event": "step", "attempt": attempt}
        return {**found, "step": step, "loss": loss, "seconds": 2.0}

    _write(
        tmp_path,
        {"time": 100.0, "event": "attempt", "attempt": 1},
        step(104.0, 0, 1, 3.0),
        step(106.0, 1, 1, 2.0),
        {"time": 107.0, "event": "save", "attempt": 1, "step": 1, "seconds": 0.5},
        step(117.0, 1, 2, 2.0),
        step(120.0, 2, 2, 1.0),
    )
    found = goodput(tmp_path)
    assert (found.wall_s, found.steps_s, found.repeated_s) == (20.0, 6.0, 2.0)
    assert (found.saving_s, found.attempts, found.share) == (0.5, 2, 0.3)
    assert losses(tmp_path) == {0: 3.0, 1: 2.0, 2: 1.0}


def test_a_line_that_a_crash_cut_short_is_passed_over(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    log.tell("step", step=0, loss=1.0, seconds=1.0)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": 1, "event": "st')
    assert [e["event"] for e in read_events(tmp_path)] == ["step"]


def test_a_full_disk_costs_a_line_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.symlink("/dev/full", tmp_path / "events.jsonl")
    EventLog(tmp_path, attempt=1).tell("step", step=0)
    assert "an event was lost" in capsys.readouterr().err


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    writer = SummaryWriter(tmp_path)
    for step, loss in ((0, 3.5), (1, 3.25), (300, 0.125)):
        writer.write(step, {"loss": loss, "tokens_per_s": 1e6}, 1_700_000_000.5)
    writer.close()
    path = next(tmp_path.glob("events.out.tfevents.*"))
    events = [*loader.RawEventFileLoader(str(path)).Load()]
    assert len(events) == 4  # frames whose checksums are right
    assert struct.pack("<f", 0.125) in events[3] and b"tokens_per_s" in events[3]
