"""Strategies of a contraction, priced and run: predicted beside measured.

In: a priced `Choice` on a mesh of this host. Out: `StrategyRun`s, the best first. The devices are
made of this machine's cores, so a mesh of any other chip is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.algebra.contract import strategies
from rooflight.costs.choose import Choice
from rooflight.dtypes import Dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.measure.microbench.child import measure

_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class StrategyRun:
    """One strategy; predicted without overlap, for the host runs one step after the other."""

    summary: str
    predicted_s: float
    measured_s: float

    @property
    def off(self) -> str:
        return f"{self.predicted_s / self.measured_s - 1:+.0%}"


def run_choice(
    choice: Choice, mesh: Mesh, dims: Mapping[str, int], dtype: Dtype
) -> tuple[StrategyRun, ...]:
    """Runs every strategy of a choice on as many devices as the mesh has."""
    if mesh.slice.chip.kind != "cpu" or dtype.name != "f32":
        raise UsageError(
            f"a program cannot be run on {mesh.slice} in {dtype.name} here",
            hint="measure this machine (`rooflight measure --write this-host.toml`), then"
            " ROOFLIGHT_CHIPS=this-host.toml, --on this-host:8 --dtype f32",
        )
    prices = (choice.best, *choice.losers)
    contraction = choice.best.strategy.contraction
    known = strategies(contraction, mesh.axes)
    seconds = measure(
        "run_steps:contraction",
        devices=mesh.slice.num_chips,
        text=str(contraction),
        axes=dict(mesh.axes),
        dims=dict(dims),
        which=[known.index(price.strategy) for price in prices],
        rounds=_ROUNDS,
    )
    return tuple(
        StrategyRun(price.summary, price.upper_s, measured)
        for price, measured in zip(prices, seconds, strict=True)
    )
