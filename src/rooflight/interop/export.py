"""A plan in the words of another framework."""

from rooflight.interop.framework import Export, load_framework
from rooflight.interop.maxtext import export_maxtext
from rooflight.interop.megatron.export import export_megatron
from rooflight.interop.torchtitan import export_torchtitan
from rooflight.plan.file.record import Plan

_EXPORTERS = {
    "maxtext": export_maxtext,
    "torchtitan": export_torchtitan,
    "megatron": export_megatron,
}


def export_plan(plan: Plan, *, to: str) -> Export:
    """Writes a plan for one of `FRAMEWORKS`; what it cannot say is listed in `losses`."""
    return _EXPORTERS[load_framework(to).name](plan)
