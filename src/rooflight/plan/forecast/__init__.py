"""How long a training step will take: the roofline's parts under fitted constants.

from rooflight.plan.forecast import forecast_run
forecast_run(run, basis_of(run.mesh.slice.chip, "megatron", experts=False)).seconds
"""

from rooflight.plan.forecast.basis import ENGINES, Basis, basis_of, blocks_of
from rooflight.plan.forecast.step import Breakdown, Forecast, forecast_run, step_breakdown

__all__ = [
    "ENGINES",
    "Basis",
    "Breakdown",
    "Forecast",
    "basis_of",
    "blocks_of",
    "forecast_run",
    "step_breakdown",
]
