"""The seconds of every step as a training program logs them, read from its log.

In: a log of Megatron-LM, NeMo, MaxText, torchtitan or MLPerf; the tokens of a step and the chips,
for programs that print rates only. Out: `LoggedSteps`. Lines of several ranks that tell of one step
count once; colours and prefixes of a launcher are passed over.
"""

import hashlib
import json
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # values of a log's JSON

from rooflight.errors import ParseError, UsageError

FEWEST = 5  # steps of which a median says something
_BEGINS = 0.1  # of the steps: compilation, warm caches, clocks
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_MLPERF = re.compile(r":::MLLOG (\{.*\})")
_LINES = {  # program: a line that tells of a step, by its number and seconds, or tokens per second
    "Megatron-LM": re.compile(
        rf"iteration\s+(\d+)/.*?elapsed time per iteration \(ms\):\s*{_NUMBER}"
        r"(?:.*?glo\w+ batch size:\s*(\d+))?"
    ),
    "MaxText": re.compile(rf"completed step: (\d+), seconds: {_NUMBER}"),
    "torchtitan": re.compile(rf"step:\s*(\d+)\s.*?\btps:\s*{_NUMBER}"),
    "NeMo": re.compile(rf"[Ss]tep (\d+) train_step_timing {_NUMBER}"),
}
_UNITS = {"Megatron-LM": 1e-3}  # of its seconds


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """What a log says: whose it is, the seconds of the steps that count, where they come from."""

    program: str
    seconds: tuple[float, ...]
    left_out: int  # first steps
    batch: int | None  # sequences of a step, where the log says
    sha256: str

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The 90th percentile less the 10th, over the median."""
        cuts = statistics.quantiles(self.seconds, n=10, method="inclusive")
        return (cuts[-1] - cuts[0]) / self.median_s


def read_log(path: Path, *, tokens: int, chips: int) -> LoggedSteps:
    """Reads a log; raises `ParseError` where no line of a known program tells of a step."""
    digest = hashlib.sha256()

    def lines() -> Iterator[str]:
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                yield line.decode("utf-8", "replace")

    try:
        program, steps, batch = logged_steps(lines(), tokens=tokens, chips=chips)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error}", hint="give the log of a run") from error
    return steady(program, steps, batch, digest.hexdigest())


def steady(program: str, steps: Iterable[float], batch: int | None, sha256: str) -> LoggedSteps:
    """The steps that say how long one takes: without the first tenth, one at least."""
    every = tuple(steps)
    first = max(1, round(_BEGINS * len(every)))
    if len(every) - first < FEWEST:
        raise UsageError(
            f"the log tells of {len(every)} steps, too few to say how long one takes",
            hint=f"give a log of {FEWEST + 1} steps or more",
        )
    return LoggedSteps(program, every[first:], first, batch, sha256)


def logged_steps(
    lines: Iterable[str], *, tokens: int, chips: int
) -> tuple[str, list[float], int | None]:
    """The program, the seconds of every step, and the sequences of one.

    >>> line = "completed step: {}, seconds: 7.30, TFLOP/s/device: 210.1"
    >>> logged_steps([line.format(1), line.format(2)], tokens=1, chips=1)
    ('MaxText', [7.3, 7.3], None)
    """
    found: dict[str, dict[int, float]] = {name: {} for name in _LINES}
    batch: int | None = None
    events: list[Mapping[str, Any]] = []
    for line in lines:
        if event := _MLPERF.search(line):
            events.append(_event(event[1]))
            continue
        plain = _COLOUR.sub("", line)
        for name, pattern in _LINES.items():
            if match := pattern.search(plain):
                number, value = int(match[1]), float(match[2].replace(",", ""))
                if not value:  # nothing was measured
                    break
                seconds = tokens / value / chips if name == "torchtitan" else value
                found[name][number] = seconds * _UNITS.get(name, 1.0)
                if name == "Megatron-LM" and match[3]:
                    batch = int(match[3])
                break
    name = max(found, key=lambda one: len(found[one]))
    try:
        if found[name]:  # a log of MLPerf that has these too tells more by them
            return name, list(found[name].values()), batch or _batch(events)
        if events:
            return "MLPerf", [s for s in _blocks(events) if s > 0], _batch(events)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ParseError(
            f"an event of MLPerf lacks what it should have: {error}", hint="check the log"
        ) from error
    raise ParseError(
        "no line of the log tells how long a step took",
        hint=f"logs of {', '.join(_LINES)} and MLPerf are read, and folders of rooflight's runs",
    )


def _event(text: str) -> Mapping[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ParseError(f"a line of MLPerf is not JSON: {error}", hint="check the log") from error


def _batch(events: Iterable[Mapping[str, Any]]) -> int | None:
    sizes = [e["value"] for e in events if e.get("key") == "global_batch_size"]
    return int(sizes[-1]) if sizes else None


def _blocks(events: list[Mapping[str, Any]]) -> Iterator[float]:
    """Steps as MLPerf tells them: each by itself, else the mean of a block between evaluations."""
    told = [e.get("value") or {} for e in events if e.get("key") == "tracked_stats"]
    timed = [v["train_step_time"] for v in told if "train_step_time" in v]
    if timed:
        yield from map(float, timed)
        return
    batch = _batch(events)
    if batch is None:
        raise ParseError("the log does not say its global_batch_size", hint="check the log")
    begun: Mapping[str, Any] | None = None
    for event in events:
        if event.get("key") == "block_start":
            begun = event
        elif event.get("key") == "block_stop" and begun is not None:
            samples = _samples(event) - _samples(begun)
            if samples > 0:
                yield (event["time_ms"] - begun["time_ms"]) / 1e3 / (samples / batch)
            begun = None


def _samples(event: Mapping[str, Any]) -> int:
    about = event.get("metadata", {})
    return int(about.get("samples_count", about.get("first_epoch_num", 0)))
