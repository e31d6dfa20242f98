"""Traffic: when requests come and how long they are, drawn at random, as a stream.

In: a rate, its burstiness, lengths as fixed numbers or distributions, a seed. Out: `Arrival`s in
order of time, made a block at a time, so that a day of ten million takes no memory.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rooflight.errors import ParseError, UsageError

_BLOCK = 1 << 14
_LENGTHS = re.compile(r"(?:(exp):)?(\d{1,8})(?:~(\d{1,2}(?:\.\d{1,6})?)|\.\.(\d{1,8}))?")
_LONGEST = 10_000_000  # tokens of one text

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class Arrival(NamedTuple):
    """One request: when it comes, its lengths, and the part of its prompt that others share."""

    time_s: float
    input_tokens: int
    output_tokens: int
    segments: tuple[int, ...] = ()  # each names `segment_tokens` of the prompt and all before
    segment_tokens: int = 0
    priority: int = 0
    session: int = -1  # beyond the segments its turns begin with all that was said before them
    turn: int = 1
    then: "Arrival | None" = None  # the next turn, timed from the end of this one's answer


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a text: all alike, lognormal or uniform around a mean, or exponential."""

    kind: Literal["fixed", "lognormal", "uniform", "exponential"]
    mean: float
    variation: float = 0.0  # standard deviation over mean, of the lognormal
    low: int = 1
    high: int = 1

    def draw(self, random: np.random.Generator, count: int) -> Ints:
        """Whole numbers, at least 1."""
        match self.kind:
            case "fixed":
                values = np.full(count, self.mean)
            case "uniform":
                values = random.integers(self.low, self.high + 1, count).astype(np.float64)
            case "exponential":
                values = random.exponential(self.mean, count)
            case "lognormal":
                sigma2 = np.log1p(self.variation**2)
                values = random.lognormal(np.log(self.mean) - sigma2 / 2, sigma2**0.5, count)
        return np.clip(np.rint(values), 1, _LONGEST).astype(np.int64)

    def __str__(self) -> str:
        match self.kind:
            case "fixed":
                return f"{self.mean:.0f}"
            case "uniform":
                return f"{self.low}..{self.high}"
            case "exponential":
                return f"exp:{self.mean:.0f}"
            case "lognormal":
                return f"{self.mean:.0f}~{self.variation:g}"


def parse_lengths(text: str, *, what: str) -> Lengths:
    """Reads `1024`, `1024~0.8` (lognormal: mean, variation), `100..2000` (uniform), `exp:1024`.

    >>> parse_lengths("1024~0.8", what="--isl")
    Lengths(kind='lognormal', mean=1024.0, variation=0.8, low=1, high=1)
    """
    match = _LENGTHS.fullmatch(text.strip())
    numbers = [int(match[2]), int(match[4] or 1)] if match else [0]
    if match is None or not all(1 <= number <= _LONGEST for number in numbers):
        raise ParseError(
            f"{what} {text!r} is not a number of tokens or a distribution",
            hint=f"write {what} 1024, 1024~0.8 (mean~variation), 100..2000 or exp:1024",
        )
    mean = int(match[2])
    if match[1]:
        return Lengths("exponential", float(mean))
    if match[3]:
        return Lengths("lognormal", float(mean), variation=float(match[3]))
    if match[4]:
        return _uniform(mean, int(match[4]), what)
    return Lengths("fixed", float(mean))


def _uniform(low: int, high: int, what: str) -> Lengths:
    if high < low:
        raise ParseError(f"{what} {low}..{high} is empty", hint=f"write {what} {high}..{low}")
    return Lengths("uniform", (low + high) / 2, low=low, high=high)


@dataclass(frozen=True, slots=True)
class RandomTraffic:
    """Requests at random: gaps are gamma distributed, with burstiness 1 a Poisson process."""

    rate: float  # requests per second
    input: Lengths
    output: Lengths
    num_requests: int
    burstiness: float = 1.0  # standard deviation of the gaps over their mean
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.rate < 1e9 and 0 < self.burstiness <= 100 and self.num_requests >= 1):
            raise UsageError(
                f"no traffic of {self.num_requests} requests at {self.rate} per second,"
                f" burstiness {self.burstiness}",
                hint="rate above 0, burstiness above 0 and at most 100, at least one request",
            )

    def arrivals(self) -> Iterator[Arrival]:
        """The stream; the same seed gives the same requests."""
        random = np.random.default_rng(self.seed)
        shape, now = self.burstiness**-2, 0.0
        for start in range(0, self.num_requests, _BLOCK):
            count = min(_BLOCK, self.num_requests - start)
            times: Floats = now + np.cumsum(random.gamma(shape, 1 / (shape * self.rate), count))
            now = float(times[-1])
            inputs, outputs = self.input.draw(random, count), self.output.draw(random, count)
            yield from map(Arrival, times.tolist(), inputs.tolist(), outputs.tolist())


def at_once(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """The same requests, all of them at time 0."""
    return (arrival._replace(time_s=0.0) for arrival in arrivals)


def with_prefixes(
    arrivals: Iterable[Arrival], *, prefixes: int, tokens: int, seed: int
) -> Iterator[Arrival]:
    """Each prompt longer than `tokens` starts with one of so many shared beginnings, at random.

    >>> drawn = with_prefixes([Arrival(0.0, 100, 8)], prefixes=1, tokens=64, seed=0)
    >>> next(drawn).segments
    (0,)
    """
    random = np.random.default_rng((seed, prefixes))  # apart from the lengths, which stay the same
    for arrival in arrivals:
        which = int(random.integers(prefixes))
        is_longer = arrival.input_tokens > tokens
        yield arrival._replace(segments=(which,), segment_tokens=tokens) if is_longer else arrival
