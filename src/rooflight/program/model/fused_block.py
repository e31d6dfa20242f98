"""A feed-forward block with both of its collectives inside its matmuls (exercise 10.3).

    In[B_X,D_Y] * W_in[D,F_Y] -> Tmp[B_X,F_Y]         gathering In over Y, "contract"
    Tmp[B_X,F_Y] * W_out[F_Y,D] -> Out[B_X,D_Y]       scattering Out over Y, "columns"

and the sequence-parallel form, In[B_XY,D] -> Out[B_XY,D], with "rows" in both. Called inside
`shard_map`; Y is the axis of tensor parallelism, X splits tokens and takes no part.
"""

from collections.abc import Callable
from typing import Literal

import jax

from rooflight.program.collective_matmul.matmul import all_gather_matmul, matmul_reduce_scatter

Split = Literal["model", "tokens"]  # the dim of In and Out that the axis splits


def fused_block(
    x: jax.Array,
    w_in: jax.Array,
    w_out: jax.Array,
    *,
    axis: str,
    split: Split,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
    two_way: bool = True,
) -> jax.Array:
    """Out of In[B,D_Y] or In[B_Y,D], in the same sharding."""
    gathered, scattered = ("contract", "columns") if split == "model" else ("rows", "rows")
    hidden = all_gather_matmul(x, w_in, axis=axis, dim=gathered, two_way=two_way)
    return matmul_reduce_scatter(
        activation(hidden), w_out, axis=axis, dim=scattered, two_way=two_way
    )
