"""In what form a decode step is best compiled, by the backend: the one place that asks.

    TPU    layers in a scan, attention by the paged kernel, or to gathered blocks
    CPU    layers one by one, attention row by row and block by block: in an FFI custom call where
           this machine can make one (`native`), else in a loop of XLA's

On a CPU a step is bound by reading memory once. A scan copies the weights of every layer before it
multiplies by them, and a gather of blocks is written element by element, read again and is as long
as the longest row; a loop over each row's own blocks finds them in the processor's own cache.
"""

from operator import itemgetter
from typing import Any, NamedTuple

import jax

from rooflight.program.cpu.load import has_native
from rooflight.program.model.params import Tree


class DecodeForm(NamedTuple):
    """What depends on the backend."""

    is_unrolled: bool  # layers one by one, from weights of their own
    is_by_row: bool  # attention loops over the blocks of each row
    is_native: bool  # and does so in an FFI custom call


class Unrolled(tuple[tuple[dict[str, jax.Array], ...], ...]):
    """The weights of a run that is not scanned: [layer][block of the pattern][name]."""

    __slots__ = ()


def decode_form() -> DecodeForm:
    """The form for the mesh that is set, or else for the default backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    is_cpu = (device.device_kind if device else jax.default_backend()) == "cpu"
    return DecodeForm(is_unrolled=is_cpu, is_by_row=is_cpu, is_native=is_cpu and has_native())


def serving_weights(params: Tree) -> Tree:
    """The weights as `extend` takes them best on the mesh that is set.

    Stacked weights work everywhere; unrolled ones are a copy.
    """
    if not decode_form().is_unrolled:
        return params

    return Tree(params.frame, tuple(jax.jit(_unroll)(run) for run in params.layers))


def _unroll(stacked: tuple[dict[str, Any], ...]) -> Unrolled:
    times = jax.tree.leaves(stacked)[0].shape[0]
    return Unrolled(jax.tree.map(itemgetter(i), stacked) for i in range(times))


jax.tree_util.register_pytree_node(
    Unrolled, lambda run: (tuple(run), None), lambda _, layers: Unrolled(layers)
)
