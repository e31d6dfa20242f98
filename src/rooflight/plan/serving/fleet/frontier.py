"""Latency against throughput against cost: every batch, slice, layout and dtype, and what binds.

In: a model, slices, dtypes and a context. Out: `Curve`s, one a layout, and the frontier of all: the
points that no other beats in both the time and the cost of a token. The expected time of a step is
that of a calibrated engine where anybody measured one, else the roofline bound.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from rooflight.errors import UsageError
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.serving_calibration import load_first_token
from rooflight.hardware.slice import Slice
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.bound import candidate_layouts
from rooflight.plan.serving.fleet.cost import calibration_of
from rooflight.plan.serving.simulate.setup import Features, Setup
from rooflight.plan.serving.step.calibrated import calibrated_generate_s, calibrated_prefill_s
from rooflight.plan.serving.step.draft import Drafter, drafter_on
from rooflight.plan.serving.step.layout import Precision, ServingLayout
from rooflight.plan.serving.step.model import StepModel
from rooflight.plan.serving.step.time import ON_CHIP, ServingStepTime

Bound = Literal["lower", "matmuls", "expected"]
BOUNDS: tuple[Bound, ...] = ("lower", "matmuls", "expected")
_HOUR_S = 3600
_MILLION = 1e6
_NONE = Features()


@dataclass(frozen=True, slots=True)
class Config:
    """A way to serve."""

    setup: Setup
    context: int

    @property
    def on(self) -> Slice:
        return self.setup.on

    @property
    def layout(self) -> ServingLayout:
        return self.setup.layout

    @property
    def precision(self) -> Precision:
        return self.setup.precision

    def __str__(self) -> str:
        return f"{self.on} {self.layout} {self.precision}, {self.context:,} positions"


@dataclass(frozen=True, slots=True)
class Point:
    """One batch of a way to serve."""

    config: Config
    batch: int
    step: ServingStepTime
    bound: Bound
    calibrated_s: float | None = None  # of a token
    token_share: float = 1.0  # of the step, that a token of each sequence takes

    @property
    def step_s(self) -> float:
        """All overlapped, matmuls in turn (as the book draws it), or as expected."""
        step = self.step
        if self.bound == "expected" and self.calibrated_s is not None:
            return self.calibrated_s
        bounds = {"lower": step.lower_s, "matmuls": step.matmuls_s, "expected": step.expected_s}
        return self.token_share * bounds[self.bound]

    @property
    def binds(self) -> str:
        """The part that takes longest, of those that the bound counts."""
        return max(self.parts, key=lambda name: self.parts[name])

    @property
    def parts(self) -> dict[str, float]:
        """What the bound counts, with its seconds."""
        whole = self.bound != "matmuls"
        return {n: s for n, s in self.step.parts.items() if whole or n in ON_CHIP}

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s

    @property
    def tokens_per_s_per_chip(self) -> float:
        return self.tokens_per_s / self.config.on.num_chips

    def dollars_per_million(self, price: float | None) -> float | None:
        """Of output tokens, at `price` a chip-hour or the catalog's; None where nobody knows it."""
        hourly = self.config.on.chip.dollars_per_hour if price is None else price
        if hourly is None:
            return None
        return hourly / _HOUR_S / self.tokens_per_s_per_chip * _MILLION


@dataclass(frozen=True, slots=True)
class Curve:
    """A way to serve over batches, smallest first, up to the largest that fits."""

    config: Config
    points: tuple[Point, ...]
    first_token_s: float  # of one prompt of the context
    calibration: Calibration | None = None  # that the expected times rest on

    @property
    def regions(self) -> tuple[tuple[str, int, int], ...]:
        """What binds, from which batch to which."""
        runs = [(name, list(run)) for name, run in groupby(self.points, lambda p: p.binds)]
        return tuple((name, run[0].batch, run[-1].batch) for name, run in runs)


def curves(
    model: ModelSpec,
    slices: Sequence[Slice],
    *,
    precisions: Sequence[Precision],
    contexts: Sequence[int],
    layouts: Sequence[ServingLayout] = (),
    bound: Bound = "expected",
    most: int = 4096,
    engine: str | None = None,
    features: Features = _NONE,
) -> tuple[Curve, ...]:
    """Every way that holds at least one sequence; without `layouts`, all worth trying.

    Without an `engine` nothing is calibrated.
    """
    found: list[Curve] = []
    for layout in layouts:
        features.check(model, layout)
    for on in slices:
        known = calibration_of(model, on.chip, engine) if engine else None
        for layout in layouts or candidate_layouts(model, on.num_chips):
            for precision in precisions:
                setup = Setup(model, on, layout, precision, features=features)
                found += _curves(setup, contexts, bound, most, known)
    return tuple(found)


def _curves(
    setup: Setup, contexts: Sequence[int], bound: Bound, most: int, known: Calibration | None
) -> Iterable[Curve]:
    if not setup.can_be:
        return
    memory = setup.memory()
    rooms = {context: memory.most_sequences(context) for context in contexts}
    if not any(rooms.values()):
        return
    steps, drafter = (
        setup.steps(),
        setup.draft and drafter_on(setup.draft, setup.on, setup.precision),
    )
    for context, room in rooms.items():
        config = Config(setup, context)
        batches = _batches(min(room, most))
        points = [_point(steps, config, n, bound, known, drafter) for n in batches]
        if points:
            yield Curve(config, tuple(points), _first_token_s(steps, context, known), known)


def _point(
    steps: StepModel,
    config: Config,
    batch: int,
    bound: Bound,
    known: Calibration | None,
    drafter: Drafter | None,
) -> Point:
    contexts = [config.context] * batch
    step = steps.generate(contexts, queries=1 + drafter.draft.tokens if drafter else 1)
    share = drafter.token_share(steps, contexts, step) if drafter else 1.0
    if known is None:
        return Point(config, batch, step, bound, None, share)
    one_s = calibrated_generate_s(
        steps, known.values, rows=batch, context=config.context, drafter=drafter
    )
    return Point(config, batch, step, bound, one_s, share)


def _first_token_s(steps: StepModel, context: int, known: Calibration | None) -> float:
    if known is None:
        return steps.prefill([context]).expected_s
    first = calibration_of(steps.model, steps.mesh.slice.chip, known.engine, load_first_token)
    return calibrated_prefill_s(steps, (first or known).values, tokens=context)


def _batches(largest: int) -> list[int]:
    """Powers of two, and the largest."""
    powers = [2**i for i in range(largest.bit_length())]
    return list(dict.fromkeys([*powers, largest])) if largest else []


def frontier(
    found: Sequence[Curve], *, context: int, price: float | None = None
) -> tuple[Point, ...]:
    """The points of a context that nothing beats in step time and cost, fastest first.

    Cost is dollars where every chip has a price, else chip-seconds.
    """
    points = [p for c in found if c.config.context == context for p in c.points]
    if not points:
        raise UsageError(
            f"not one sequence of {context:,} positions fits on any of the slices",
            hint="give larger slices, a narrower dtype or a shorter context",
        )
    prices = [p.dollars_per_million(price) for p in points]
    in_dollars = all(dollars is not None for dollars in prices)
    kept: list[Point] = []
    cheapest = float("inf")
    for point in sorted(points, key=lambda p: (p.step_s, -p.tokens_per_s_per_chip)):
        dollars = point.dollars_per_million(price)
        cost = dollars if in_dollars and dollars is not None else 1 / point.tokens_per_s_per_chip
        if cost < cheapest:
            kept.append(point)
            cheapest = cost
    return tuple(kept)
