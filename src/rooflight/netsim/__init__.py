"""A link-level simulator of collectives on a torus; it knows nothing of the cost formulas."""

from rooflight.netsim.simulate import Hop, SimResult, simulate, simulate_send, trace_json

__all__ = ["Hop", "SimResult", "simulate", "simulate_send", "trace_json"]
