"""What the planner says of the same traffic, to stand beside what was measured.

In: arrivals and a replica. Out: `Predicted`: the simulated latencies, calibrated where anybody
measured such chips, and the roof: an average request all alone at catalog rates (book chapter 7).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rooflight.hardware.calibration import ANY, Calibration
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.clock import Floor, StepClock, floor_seconds
from rooflight.plan.serving.simulate.run import Simulation, simulate
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Slo


@dataclass(frozen=True, slots=True)
class Predicted:
    """A simulation of the traffic, and what it rests on."""

    setup: Setup
    simulation: Simulation
    roof: Floor
    calibration: Calibration | None


def predict(
    arrivals: Iterable[Arrival],
    setup: Setup,
    *,
    replicas: int,
    slo: Slo,
    input_tokens: int,
    output_tokens: int,
    engine: str | None = ANY,
    concurrency: int | None = None,
) -> Predicted:
    """Simulates the arrivals on so many replicas; the lengths are those of an average request.

    Without an `engine`, whose calibration is taken, it is the roofline bound.
    """
    cost, roofs, calibration = fleet_cost(
        setup, input_tokens=input_tokens, context=input_tokens + output_tokens // 2, engine=engine
    )
    found = simulate(
        arrivals,
        cost=cost,
        limits=setup.limits(),
        replicas=replicas,
        slo=slo,
        concurrency=concurrency,
    )
    roof = floor_seconds(StepClock(roofs), input_tokens=input_tokens, output_tokens=output_tokens)
    return Predicted(setup, found, roof, calibration)
