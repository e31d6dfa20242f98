# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportMissingImports=false
"""Kernels that jax itself ships, called as engines call them: sound programs nobody wrote for us.

Batch or requests lie over X, heads or experts over Y; a shard_map hands each device its part.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from mutants import abstract

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
BATCH, SEQ, HEADS, WIDTH = 16, 2048, 16, 128
_ROWS = P("X", "Y", None, None)


def _own(mesh: Mesh, run: Any, specs: Any, out: Any) -> Any:
    return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)


def _heads(mesh: Mesh) -> tuple[Any, ...]:
    return (abstract(mesh, (BATCH, HEADS, SEQ, WIDTH), _ROWS),) * 3


def _gradients(attend: Any) -> Any:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attend(q, k, v).astype(jnp.float32))

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))


def flash(mesh: Mesh) -> Built:
    """Flash attention of jax, forward and backward."""
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return flash_attention(q, k, v, causal=True)

    return _gradients(_own(mesh, attend, (_ROWS,) * 3, _ROWS)), _heads(mesh)


def splash(mesh: Mesh) -> Built:
    """Splash attention of jax, forward and backward, as MaxText calls it."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernel,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_mask as masks,
    )

    mask = masks.MultiHeadMask([masks.CausalMask((SEQ, SEQ))] * (HEADS // mesh.shape["Y"]))

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return jax.vmap(kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1))(q, k, v)

    return _gradients(_own(mesh, attend, (_ROWS,) * 3, _ROWS)), _heads(mesh)


def megablox(mesh: Mesh) -> Built:
    """Grouped matmuls of jax over the experts of a device, and their gradients."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    def experts(x: jax.Array, up: jax.Array, down: jax.Array, sizes: jax.Array) -> jax.Array:
        hidden = gmm(x[0], up, sizes[0], preferred_element_type=jnp.bfloat16)
        return gmm(jax.nn.silu(hidden), down, sizes[0], preferred_element_type=jnp.bfloat16)[None]

    rows, mine = P(("X", "Y"), None, None), P("Y", None, None)
    own = _own(mesh, experts, (rows, mine, mine, P(("X", "Y"), None)), rows)

    def loss(x: Any, up: Any, down: Any, sizes: Any) -> jax.Array:
        return jnp.sum(own(x, up, down, sizes).astype(jnp.float32))

    places = tuple(jax.NamedSharding(mesh, mine) for _ in "ud")
    return jax.jit(jax.grad(loss, argnums=(1, 2)), out_shardings=places), (
        abstract(mesh, (8, 8192, 2048), rows),
        abstract(mesh, (32, 2048, 1024), mine),
        abstract(mesh, (32, 1024, 2048), mine),
        abstract(mesh, (8, 8), P(("X", "Y"), None), jnp.int32),
    )


def paged(mesh: Mesh) -> Built:
    """Ragged paged attention of jax, as vLLM calls it on TPUs: heads over Y, engines over X."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    def attend(q: Any, pages: Any, lens: Any, table: Any, starts: Any, many: Any) -> Any:
        return ragged_paged_attention(
            q[0], pages[0], lens[0], table[0], starts[0], many[0], sm_scale=0.088
        )[None]

    heads, pages, rest = P("X", None, "Y"), P("X", None, None, "Y"), P("X")
    own = _own(mesh, attend, (heads, pages, *(rest,) * 4), heads)
    return jax.jit(own), (
        abstract(mesh, (2, 512, 32, 128), heads),
        abstract(mesh, (2, 1024, 32, 16, 128), pages),
        abstract(mesh, (2, 64), rest, jnp.int32),
        abstract(mesh, (2, 64, 16), rest, jnp.int32),
        abstract(mesh, (2, 65), rest, jnp.int32),
        abstract(mesh, (2, 1), rest, jnp.int32),
    )
