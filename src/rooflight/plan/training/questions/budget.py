"""What a training run takes: FLOPs, days, chip-hours, dollars, kWh, failures; and the inverse.

In: FLOPs and `Terms` (a slice, a utilisation, a price, a failure rate). Out: a `Budget`; or, from
FLOPs alone, the parameters and tokens that scaling laws would spend them on. What the catalog and
the user do not say stays None.

    C training FLOPs    N parameters    D tokens    L loss in nats per token
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.hardware.chip import Source
from rooflight.hardware.slice import Slice
from rooflight.models.graph.ops import Graph
from rooflight.models.graph.utilisation import CONVENTIONS, six_nd
from rooflight.models.scaling_laws import ScalingLaw, load_scaling_laws

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_PETAFLOP = 1e15
_KILOWATT = 1e3
_WITHOUT_CONTEXT = "6ND"  # the only convention that needs no length of the sequences
_WITH_CONTEXT = (_WITHOUT_CONTEXT, "6ND + full attention", "matmuls + causal attention")


@dataclass(frozen=True, slots=True)
class Terms:
    """On what a run is computed, how well, and what it is charged.

    `mfu` has no default: it is the one number only a measurement gives. `price` replaces the
    catalog's dollars per chip-hour; `mtbf_hours` is the mean time between failures of one chip.
    """

    on: Slice
    mfu: float
    dtype: str = "bf16"
    price: float | None = None
    mtbf_hours: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.mfu <= 1:
            raise UsageError(
                f"an MFU of {self.mfu:.4g} is not a part of the peak", hint="write 40% or 0.4"
            )

    @property
    def flops_per_s(self) -> float:
        """What all chips do together: chips x peak x MFU."""
        return self.on.num_chips * self.on.chip.peak_flops(self.dtype) * self.mfu

    @property
    def dollars_per_chip_hour(self) -> float | None:
        return self.on.chip.dollars_per_hour if self.price is None else self.price

    @property
    def price_source(self) -> Source | None:
        """Where the catalog has its price from; None if it is the user's own, or unknown."""
        return self.on.chip.source_of("dollars_per_hour") if self.price is None else None

    @property
    def flops_per_dollar(self) -> float | None:
        """FLOPs that a dollar buys: peak x MFU x 3600 / price (chapter 8, at an MFU of 1)."""
        if not self.dollars_per_chip_hour:
            return None
        per_chip = self.flops_per_s / self.on.num_chips
        return per_chip * _HOUR_S / self.dollars_per_chip_hour


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of FLOPs under some terms. Time lost to restarts and idle chips is not in it.

    >>> from rooflight.hardware.slice import parse_slice
    >>> run = Budget(six_nd(70e9, 15e12), Terms(parse_slice("v5p:16x20x28"), mfu=0.4))
    >>> f"{run.days:.1f} days, {run.petaflop_days:,.0f} PF-days"
    '44.3 days, 72,917 PF-days'
    """

    flops: float
    terms: Terms

    @property
    def petaflop_days(self) -> float:
        return petaflop_days(self.flops)

    @property
    def seconds(self) -> float:
        """C / (chips x peak x MFU), chapter 6."""
        return self.flops / self.terms.flops_per_s

    @property
    def days(self) -> float:
        return self.seconds / _DAY_S

    @property
    def chip_hours(self) -> float:
        return self.terms.on.num_chips * self.seconds / _HOUR_S

    @property
    def dollars(self) -> float | None:
        price = self.terms.dollars_per_chip_hour
        return None if price is None else self.chip_hours * price

    @property
    def kwh(self) -> float | None:
        """Chips at their rated power; hosts, network and cooling come on top."""
        watts = self.terms.on.chip.watts
        return None if watts is None else self.chip_hours * watts / _KILOWATT

    @property
    def expected_failures(self) -> float | None:
        """Chip-hours over the mean time between failures of a chip.

        It stops holding where failures come in groups, such as a switch with all its chips.
        """
        mtbf = self.terms.mtbf_hours
        return None if mtbf is None else self.chip_hours / mtbf


def petaflop_days(flops: float) -> float:
    """A number of FLOPs as days of 1e15 a second.

    >>> petaflop_days(8.64e19)
    1.0
    """
    return flops / _PETAFLOP / _DAY_S


def run_flops(graph: Graph, *, tokens: float, seq: int | None = None) -> Mapping[str, float]:
    """Training FLOPs by convention: 6ND, and with a context also those that count attention.

    An MFU belongs to a convention: the same days follow only from the FLOPs it was measured with.
    """
    names = (_WITHOUT_CONTEXT,) if seq is None else _WITH_CONTEXT
    chosen = [c for c in CONVENTIONS if c.name in names]
    return {c.name: tokens * c.flops_per_token(graph, seq or 1) for c in chosen}


def affordable_flops(dollars: float, terms: Terms) -> float:
    """FLOPs that some dollars buy; a chip without a price is an error."""
    if not terms.flops_per_dollar:
        title = terms.on.chip.title
        raise UsageError(
            f"{title} has no price in its catalog, so dollars buy an unknown number of FLOPs",
            hint="give what you pay for a chip and hour: --price 2.5",
        )
    return dollars * terms.flops_per_dollar


@dataclass(frozen=True, slots=True)
class Allocation:
    """FLOPs split between parameters and tokens, by a law or by the rule of thumb."""

    by: str
    source: Source
    params: float
    tokens: float
    losses: Mapping[str, float]  # what each law predicts for it
    is_extrapolated: bool  # outside the runs that the laws were fitted to

    @property
    def tokens_per_param(self) -> float:
        return self.tokens / self.params


def allocations(flops: float) -> tuple[Allocation, ...]:
    """The best split of some FLOPs by each law, then by the rule of thumb.

    >>> [f"{a.by}: {a.params / 1e9:.0f}B" for a in allocations(6 * 70e9 * 1.4e12)]
    ['replication: 73B', 'chinchilla: 41B', 'printed: 32B', '20 a param: 70B']
    """
    known = load_scaling_laws()
    splits = [(law.name, law.source, optimal_params(flops, law)) for law in known.laws]
    by_rule = math.sqrt(flops / six_nd(1, known.rule.tokens_per_param))
    splits.append((known.rule.name, known.rule.source, by_rule))
    return tuple(_allocation(by, source, params, flops) for by, source, params in splits)


def _allocation(by: str, source: Source, params: float, flops: float) -> Allocation:
    known = load_scaling_laws()
    tokens = flops / six_nd(params, 1)
    losses = {law.name: law.loss(params, tokens) for law in known.laws}
    return Allocation(by, source, params, tokens, losses, not known.fitted.holds(params, tokens))


def optimal_params(flops: float, law: ScalingLaw) -> float:
    """The parameters at which a law predicts the least loss for C = 6 N D.

    N = G (C/6)^(beta/(alpha+beta)), G = (alpha A / (beta B))^(1/(alpha+beta)): Hoffmann et al.
    2022, equation 4. N counts all parameters of a dense model; a mixture has no such law here.
    """
    exponents = law.alpha + law.beta
    scale = (law.alpha * law.A / (law.beta * law.B)) ** (1 / exponents)
    return scale * (flops / six_nd(1, 1)) ** (law.beta / exponents)
