"""The model as contractions over named dims: one graph, off which everything is counted.

from rooflight.models.graph.count import count_params
from rooflight.models.graph.build import model_graph
count_params(model_graph(load_model("llama3-70b")))
"""

from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import (
    backward_flops,
    count_params,
    dim_sizes,
    elements,
    forward_flops,
    kv_bytes,
    kv_bytes_per_token,
    op_flops,
    param_bytes,
    param_count,
    training_flops,
)
from rooflight.models.graph.ops import HAS_FLOPS, KINDS, Cache, Graph, Kind, Mask, Op, Param
from rooflight.models.graph.summary import Component, Summary, summarize
from rooflight.models.graph.utilisation import (
    CONVENTIONS,
    REMATS,
    Convention,
    Utilisation,
    six_nd,
    utilisation,
)
from rooflight.models.layout.schedules import SCHEDULES, make_schedule
from rooflight.models.layout.slots import Schedule, Slot, SlotKind, check_schedule, run_order

__all__ = [
    "CONVENTIONS",
    "HAS_FLOPS",
    "KINDS",
    "REMATS",
    "SCHEDULES",
    "Cache",
    "Component",
    "Convention",
    "Graph",
    "Kind",
    "Mask",
    "Op",
    "Param",
    "Schedule",
    "Slot",
    "SlotKind",
    "Summary",
    "Utilisation",
    "backward_flops",
    "check_schedule",
    "count_params",
    "dim_sizes",
    "elements",
    "forward_flops",
    "kv_bytes",
    "kv_bytes_per_token",
    "make_schedule",
    "model_graph",
    "op_flops",
    "param_bytes",
    "param_count",
    "run_order",
    "six_nd",
    "summarize",
    "training_flops",
    "utilisation",
]
