"""Rematerialisation by name: the planner's policies as policies of `jax.checkpoint`.

none      keep the results of all ops that the backward pass reads
dots      keep the results of weight matmuls
block     keep the input of each layer
offload   block, its inputs in host memory
q+k+v     keep the named tensors beside the input of each layer

Results are kept where the layout has them. What was gathered for a product, weights above all, is
gathered again for its gradient under every policy, and what an op makes on the way to its result
(fp32 copies inside a norm, turned pairs of a query) is made again.
"""

from collections.abc import Callable
from functools import partial

import jax

from rooflight.errors import UnknownNameError
from rooflight.graph import model_graph
from rooflight.specs.model import ModelSpec

Layer = Callable[..., jax.Array]


def remat_policy(text: str, model: ModelSpec) -> Callable[[Layer], Layer]:
    """What to wrap the function of a layer in."""
    known = jax.checkpoint_policies
    if text == "offload":
        policy = known.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["x"],
            offload_src="device",
            offload_dst="pinned_host",
        )
    else:
        policy = known.save_only_these_names(*_saved(text, model))
    return partial(jax.checkpoint, policy=policy, prevent_cse=False)  # scan keeps passes apart


def _saved(text: str, model: ModelSpec) -> list[str]:
    """The ops whose results are kept."""
    ops = [op for op in model_graph(model).ops if op.block is not None]
    if text == "block":
        return []
    if text == "none":
        return [op.name for op in ops]
    if text == "dots":
        return [op.name for op in ops if op.kind == "matmul"]
    made = {op.contraction.result.name for op in ops}
    names = [name.strip() for name in text.split("+")]
    for name in names:
        if name not in made:
            raise UnknownNameError("remat policy or tensor", name, {"none", "dots", "block", *made})
    return [op.name for op in ops if op.contraction.result.name in names]
