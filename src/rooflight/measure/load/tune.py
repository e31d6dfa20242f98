"""Settings of a server, predicted, started, measured, and predicted again by what was seen.

In: settings of one server, a command that starts it, traffic. Out: `Trial`s. Of all settings the
best few by prediction are started one after another and driven with the same requests; two
constants (how much slower a step is than planned, and what each step takes besides) are fitted to
what was measured, and all settings are predicted once more.
"""

import math
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rooflight.errors import UsageError
from rooflight.measure.load.predict import Predicted, predict
from rooflight.measure.load.tally import Measured
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.run import Simulation, simulate
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.cost import StepCost

_LOOKS_EVERY_S = 0.2
_ENDS_WITHIN_S = 30.0
_TAIL = 2000  # characters of the log of a server that did not come up
_ERROR = re.compile(r"^(?!.*WARNING).*\b\w+(?:Error|Exception): ", re.MULTILINE)
_ROUNDS = 5
_STEPS = (-2, -1, 0, 1, 2)


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """The requests that every trial gets, their mean lengths, and their SLO."""

    arrivals: Callable[[], Sequence[Arrival]]
    input_tokens: int
    output_tokens: int
    slo: Slo
    engine: str | None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class PacedCost:
    """A step cost as a server was seen to keep it."""

    cost: StepCost
    pace: float = 1.0  # times as long as planned
    step_s: float = 0.0  # that every step takes besides

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        planned_s = self.cost.seconds(
            decode_rows=decode_rows,
            kv_tokens=kv_tokens,
            prefill_tokens=prefill_tokens,
            prefill_kv_tokens=prefill_kv_tokens,
        )
        return self.pace * planned_s + self.step_s

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return self.pace * self.cost.late_s(
            prefill_tokens=prefill_tokens, prefill_kv_tokens=prefill_kv_tokens
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting: what was said of it, what was measured, what is said now."""

    setup: Setup
    predicted: Predicted
    measured: Measured | None = None
    refitted: Simulation | None = None
    failure: str = ""  # why the server did not come up

    @property
    def name(self) -> str:
        return _name(self.setup)


def _name(setup: Setup) -> str:
    sizes = setup.sizes
    rows = f"{sizes.max_rows} row{'s' if sizes.max_rows > 1 else ''}"
    return f"{setup.layout}, {rows}, {sizes.max_step_tokens} step tokens"


@dataclass(frozen=True, slots=True)
class Tuned:
    """All settings, the best by prediction first; and the constants that the server was seen by."""

    trials: tuple[Trial, ...]
    pace: float
    step_s: float
    refused: tuple[str, ...] = ()  # settings that cannot be, and why

    @property
    def tried(self) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if t.measured)

    @property
    def best(self) -> Trial:
        """Of what was measured."""
        return min(self.tried, key=lambda t: merit(t.measured) if t.measured else ())

    @property
    def next_best(self) -> Trial:
        """What the refitted prediction would choose of all."""
        return min(self.trials, key=lambda t: merit(t.refitted) if t.refitted else ())


def merit(found: Simulation | Measured) -> tuple[float, ...]:
    """Less is better: requests outside their SLO, then the mean time of a request."""
    return (-round(found.good_share, 3), found.e2e.mean if found.e2e else math.inf)


def predicted_trials(
    setups: Sequence[Setup], load: TrialLoad
) -> tuple[list[Trial], tuple[str, ...]]:
    """Every setting that can be, the best first; and why others cannot."""
    found: list[Trial] = []
    refusals: list[tuple[Setup, UsageError]] = []
    for setup in setups:
        try:
            one = predict(
                load.arrivals(),
                setup,
                replicas=1,
                slo=load.slo,
                input_tokens=load.input_tokens,
                output_tokens=load.output_tokens,
                engine=load.engine,
                concurrency=load.concurrency,
            )
            found.append(Trial(setup, one))
        except UsageError as error:
            refusals.append((setup, error))
    if not found:
        raise refusals[0][1]
    ranked = sorted(found, key=lambda t: merit(t.predicted.simulation))
    return ranked, tuple(f"{_name(setup)}: {error}" for setup, error in refusals)


def tune(
    trials: Sequence[Trial], load: TrialLoad, measure: Callable[[Trial], Measured], tries: int
) -> Tuned:
    """Measures the first few, fits two constants to them, and predicts all again.

    A setting with which the server does not come up is told; raises where none does.
    """
    failed: list[UsageError] = []
    every = [_tried(t, measure, failed) for t in trials[:tries]] + [*trials[tries:]]
    if failed and not any(t.measured for t in every):
        raise failed[0]
    pairs = [(t, _cost(t.setup, load)) for t in every]
    pace, step_s = _fitted(pairs, load)
    again = [_simulated(t.setup, PacedCost(c, pace, step_s), load) for t, c in pairs]
    refitted = (replace(t, refitted=s) for t, s in zip(every, again, strict=True))
    return Tuned(tuple(refitted), pace, step_s)


def _tried(trial: Trial, measure: Callable[[Trial], Measured], failed: list[UsageError]) -> Trial:
    try:
        return replace(trial, measured=measure(trial))
    except UsageError as error:
        failed.append(error)
        return replace(trial, failure=str(error))


def _cost(setup: Setup, load: TrialLoad) -> StepCost:
    asked, context = load.input_tokens, load.input_tokens + load.output_tokens // 2
    return fleet_cost(setup, input_tokens=asked, context=context, engine=load.engine)[0]


def _simulated(setup: Setup, cost: StepCost, load: TrialLoad) -> Simulation:
    return simulate(
        load.arrivals(),
        cost=cost,
        limits=setup.limits(),
        replicas=1,
        slo=load.slo,
        concurrency=load.concurrency,
    )


def _fitted(pairs: Sequence[tuple[Trial, StepCost]], load: TrialLoad) -> tuple[float, float]:
    """Pace and seconds of a step that bring the simulated times nearest to the measured ones."""
    finished = [(t, c) for t, c in pairs if t.measured and t.measured.e2e]
    ratios = [p for t, _ in finished for p in _times(t.measured, t.predicted.simulation)]
    if not ratios:
        return 1.0, 0.0

    def off(pace: float, step_s: float) -> float:
        return sum(
            math.log(seen / said) ** 2
            for trial, cost in finished
            for seen, said in _times(
                trial.measured, _simulated(trial.setup, PacedCost(cost, pace, step_s), load)
            )
        )

    slower = math.exp(statistics.fmean(math.log(seen / said) for seen, said in ratios))
    unit = min(seen for seen, _ in ratios) / 4
    around = [(slower * math.exp(k / 2), m * unit) for k in range(-8, 2) for m in range(5)]
    best, width = math.inf, 0.25
    pace = step_s = 0.0
    for _ in range(_ROUNDS):
        found = {at: off(*at) for at in around if at[1] >= 0}
        if min(found.values()) < best:
            pace, step_s = min(found, key=lambda at: found[at])
            best = found[pace, step_s]
        unit /= 2
        around = [(pace * math.exp(k * width), step_s + m * unit) for k in _STEPS for m in _STEPS]
        width /= 2
    return pace, step_s


def _times(seen: Simulation | Measured | None, said: Simulation) -> list[tuple[float, float]]:
    """Pairs of mean seconds that both have: to the first token, per token."""
    pairs = [(seen.ttft, said.ttft), (seen.tpot, said.tpot)] if seen else []
    return [(a.mean, b.mean) for a, b in pairs if a and b and a.mean > 0 and b.mean > 0]


@contextmanager
def started(command: str, setup: Setup, log: Path, *, within_s: float) -> Generator[str]:
    """The address of a server that a command starts, `{port}` and its setting filled in.

    Raises `UsageError` with the end of its log where it does not come up.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    words = filled(command, setup, port)
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
        except OSError as error:
            raise UsageError(
                f"the server cannot be started: {error}", hint="install it, or give its path"
            ) from error
        try:
            _wait(process, url, log, within_s)
            yield url
        finally:
            _end(process)


def filled(command: str, setup: Setup, port: int) -> list[str]:
    """The words of a command for one setting.

    Braces name `port`, `rows`, `step_tokens` and the degrees of a layout (`tp`, `pp`, `dp`, `ep`).
    """
    layout, sizes = setup.layout, setup.sizes
    known = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep")}
    known |= {"port": port, "rows": sizes.max_rows, "step_tokens": sizes.max_step_tokens}
    if "{port}" not in command:
        raise UsageError("the command has no {port}", hint="write --port {port} in --command")
    try:
        return [word.format_map(known) for word in shlex.split(command)]
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(
            f"--command cannot be filled in: {error}", hint=f"it may have {', '.join(known)}"
        ) from None


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path, within_s: float) -> None:
    """Until it is ready, or lists its models (or wants a key) where it has no word for ready."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and process.poll() is None:
        ready = _status(f"{url}/ready")
        if ready == 200 or (ready == 404 and _status(f"{url}/v1/models") in (200, 401)):
            return
        time.sleep(_LOOKS_EVERY_S)
    why = "ended" if process.poll() is not None else f"did not answer within {within_s:g} s"
    said = last_words(log.read_text(encoding="utf-8", errors="replace"))
    raise UsageError(f"the server {why}: {said}", hint="try its command by hand; --start-timeout")


def last_words(log: str) -> str:
    """The end of a log, and where it first names an error if that is long before.

    Engines are child processes: one that fails says why, and its server ends many lines later.
    """
    found, half = _ERROR.search(log, 0, max(0, len(log) - _TAIL)), _TAIL // 2
    cause = f"{log[found.start() :][:half]}\n...\n" if found else ""
    return cause + log[-half if found else -_TAIL :].strip()


def _status(url: str) -> int | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks the server and all that it started to stop, then makes them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_ENDS_WITHIN_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
