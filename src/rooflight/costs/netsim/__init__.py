"""A link-level simulator of collectives; it knows nothing of the cost formulas."""

from rooflight.costs.netsim.simulate import (
    Hop,
    SimResult,
    simulate,
    simulate_seconds,
    simulate_send,
    trace_json,
)
from rooflight.costs.netsim.watch import Moment, Move, Watched, watch

__all__ = [
    "Hop",
    "Moment",
    "Move",
    "SimResult",
    "Watched",
    "simulate",
    "simulate_seconds",
    "simulate_send",
    "trace_json",
    "watch",
]
