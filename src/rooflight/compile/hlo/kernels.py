"""Work of Pallas kernels that do not say theirs: the attention kernels that ship with jax.

A kernel is opaque to the compiler: no cycle estimate, and FLOPs only if its author gave a cost
estimate. Those of splash attention, and the bytes that paged attention reads, follow from its name
and its operands.
"""

import re

from rooflight.compile.hlo.instruction import Computation, Instruction

_COST = re.compile(r'"cost_estimate":\{[^{}]*?"flops":"?(\d{1,18})')
# Matmuls of queries by keys in each kernel, 2 * N * T * S * H FLOPs each: scores and output; or
# scores, both gradients that scores take part in, and the gradients of keys and values.
_MATMULS = {
    "splash_mha_fwd": 2,
    "splash_mha_dkv": 4,
    "splash_mha_dq": 3,
    "splash_mqa_fwd": 2,
    "splash_mqa_dkv": 4,
    "splash_mqa_dq": 3,
}
_PAGED = "ragged_paged_attention"


def kernel_bytes(computation: Computation, kernel: Instruction) -> int | None:
    """Bytes of the pages that paged attention reads if every row fills its table; else None."""
    shapes = [i.shapes[0] for i in computation.inputs(kernel) if i.shapes]
    tables = next((s for s in shapes if s.dtype == "s32" and len(s.dims) == 2), None)
    pages = next((s for s in shapes if s.dtype != "s32" and len(s.dims) == 4), None)
    if not kernel.name.startswith(_PAGED) or tables is None or pages is None:
        return None
    return tables.elements * pages.nbytes // pages.dims[0]


def kernel_flops(computation: Computation, kernel: Instruction) -> int | None:
    """FLOPs of one execution of a kernel; None if neither its author nor its name says.

    Splash attention is taken to be causal, as training is: of n x n blocks it visits n (n + 1) / 2.
    """
    if cost := _COST.search(kernel.attributes):
        return int(cost[1])
    matmuls = next((n for name, n in _MATMULS.items() if kernel.name.startswith(name)), None)
    shapes = [i.shapes[0] for i in computation.inputs(kernel) if i.shapes]
    blocks = next((s.dims for s in shapes if s.dtype == "s8" and len(s.dims) == 3), None)
    arrays = [s for s in shapes if s.dtype in ("bf16", "f32") and len(s.dims) >= 3]
    if matmuls is None or blocks is None or len(arrays) < 2:
        return None
    queries, keys = arrays[0], arrays[1]
    pairs = queries.elements * keys.dims[-2]
    visited = (blocks[1] + 1) / (2 * blocks[1]) if blocks[1] == blocks[2] else 1.0
    return int(2 * matmuls * pairs * visited)
