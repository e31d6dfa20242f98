"""Seconds and bytes: rooflines of local ops, network time of collectives, choice of strategies."""

from rooflight.costs.best import PricedLayout, best_layouts
from rooflight.costs.choose import Choice, Price, Pricer, StepPrice, choose, pick, price, price_step
from rooflight.costs.network import (
    KINDS,
    CollectiveKind,
    NetworkTime,
    collective_time,
    permute_time,
)
from rooflight.costs.ragged import ragged_share, ragged_share_bound
from rooflight.costs.roofline import (
    OpTime,
    Roof,
    attainable,
    attention_intensity,
    batch_tokens,
    contraction_time,
    critical_batch,
    critical_contracting_dim,
    hiding_intensity,
    matmul_time,
    memory_bytes_per_s,
    moe_critical_batch,
    ridge_point,
    tile_intensity,
    vector_ridge_point,
    vector_time,
)
from rooflight.costs.systolic import Cycles, systolic_cycles
from rooflight.costs.tiling import padded_shape

__all__ = [
    "KINDS",
    "Choice",
    "CollectiveKind",
    "Cycles",
    "NetworkTime",
    "OpTime",
    "Price",
    "PricedLayout",
    "Pricer",
    "Roof",
    "StepPrice",
    "attainable",
    "attention_intensity",
    "batch_tokens",
    "best_layouts",
    "choose",
    "collective_time",
    "contraction_time",
    "critical_batch",
    "critical_contracting_dim",
    "hiding_intensity",
    "matmul_time",
    "memory_bytes_per_s",
    "moe_critical_batch",
    "padded_shape",
    "permute_time",
    "pick",
    "price",
    "price_step",
    "ragged_share",
    "ragged_share_bound",
    "ridge_point",
    "systolic_cycles",
    "tile_intensity",
    "vector_ridge_point",
    "vector_time",
]
