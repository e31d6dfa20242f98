"""`paged_rows.attend_by_row` by a foreign function of this CPU (`csrc/paged_attention.cc`).

XLA runs a loop on one core and each step of it as a handful of calls, which take longer than the
numbers of a block do; the function takes a row's kv head at a time on every core, and only what is
read from memory takes time.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rooflight.program.attention_tile import How, State
from rooflight.program.native import PAGED_ATTENTION, STORED
from rooflight.program.paged_blocks import Blocks, Pages
from rooflight.program.varying import align


def native_can(pages: Pages) -> bool:
    """Whether it reads such pages: keys and values of heads, as they are."""
    return set(pages) == {"kv"} and pages["kv"].dtype in STORED


def attend_natively(q: jax.Array, pages: jax.Array, blocks: Blocks, how: How) -> State:
    """The state of q[B,T,K,G,H] over the blocks of each row, in pages[L,N,S,2K,H]."""
    assert how.causal
    rows = blocks.rows
    scaled = q.astype(jnp.float32) * how.scale
    whole = (blocks.ids, rows.starts, rows.lengths, blocks.layer)
    operands = align((scaled, pages, *(jnp.asarray(x, jnp.int32) for x in whole)))
    state = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (q.shape[:-1],) * 2]
    call = jax.ffi.ffi_call(PAGED_ATTENTION, (*state, jax.ShapeDtypeStruct(q.shape, jnp.float32)))
    window, softcap = np.int64(how.mask.window or 0), np.float32(how.softcap or 0)
    return State(*call(*operands, window=window, softcap=softcap))
