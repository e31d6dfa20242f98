"""Which constant of a calibration prices which work; shared by floats and arrays."""

from collections.abc import Mapping

Values = Mapping[str, float]
MATMUL_CONSTANTS = ("matmul_bf16", "matmul_fp8", "matmul_mxfp8", "matmul_nvfp4")
PRECISIONS = {"fp8": 1, "int8": 1, "mxfp8": 2, "nvfp4": 3, "fp4": 3, "mxfp4": 3, "int4": 3}

# The catalog alone: every roof is reached and every collective hides behind matmuls.
ROOF: Values = {
    **dict.fromkeys((*MATMUL_CONSTANTS, "experts", "attention", "memory", "dispatch"), 1.0),
    **dict.fromkeys(("near_links", "far_links"), 1.0),
    **dict.fromkeys(("overlap_weights", "overlap_activations", "overlap_experts"), 1.0),
    **dict.fromkeys(("matmul_launch_s", "step_s"), 0.0),
}


def efficiency_name(kind: str, dtype: str) -> str:
    """The constant that divides FLOPs; those of experts have one more."""
    return "attention" if kind == "attention" else MATMUL_CONSTANTS[PRECISIONS.get(dtype, 0)]


def memory_name(kind: str) -> str:
    """The constant that divides bytes."""
    return {"dispatch": "dispatch", "host": "far_links"}.get(kind, "memory")
