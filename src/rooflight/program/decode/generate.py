"""What a server calls: the inference functions of a program, compiled, the cache updated in place.

In: a `Program`, whose constraints are those of a decode step. Out: `Functions`. Shapes are
fixed: a call with other shapes compiles again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rooflight.program.decode import step as decode
from rooflight.program.decode.cache import Layers, check_rows_only
from rooflight.program.decode.insert import insert
from rooflight.program.decode.sampling import Draws, sample
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.program.paged.blocks import PagedBatch

Jitted = Callable[..., Any]  # arrays and trees of them


class Functions(NamedTuple):
    """Jitted functions; those that take a cache use it up and give back its successor.

    prefill(params, tokens[B,T], lengths[B]) -> logits[B,V], kept
    insert(cache, kept, blocks[B,P]) -> cache
    generate(params, cache, tokens[B], positions[B], tables[B,P]) -> logits[B,V], cache
    prefill_chunk(params, cache, tokens[B,T], rows) -> logits[B,V], cache
    verify(params, cache, tokens[B,T], rows, draws) -> Verified, cache
    sample(logits[B,T,V], draws, positions[B,T]) -> tokens[B,T]
    """

    prefill: Jitted
    insert: Jitted
    generate: Jitted
    prefill_chunk: Jitted
    verify: Jitted
    sample: Jitted


def make_functions(program: Program) -> Functions:
    """Compiles the inference functions of a program, when they are first called."""
    check_rows_only(program.constraints)
    return Functions(
        prefill=jax.jit(partial(decode.prefill, program)),
        insert=jax.jit(insert, donate_argnums=0),
        generate=jax.jit(partial(decode.generate, program), donate_argnums=1),
        prefill_chunk=jax.jit(partial(decode.prefill_chunk, program), donate_argnums=1),
        verify=jax.jit(partial(verify, program), donate_argnums=1),
        sample=jax.jit(sample),
    )


class VerifiedTokens(NamedTuple):
    """What a model makes of draft tokens: the first `accepted` of them, then one of its own."""

    accepted: jax.Array  # [B], of the draft tokens
    tokens: jax.Array  # [B,T]: row b goes on with tokens[b, : accepted[b] + 1]


def verify(
    program: Program, params: Tree, cache: Layers, tokens: jax.Array, rows: PagedBatch, draws: Draws
) -> tuple[VerifiedTokens, Layers]:
    """Scores the last token of each row and the draft tokens after it, tokens[B,T], in one call.

    A draft token is accepted where it is what the row would have drawn there, so it changes how
    many calls a text takes, and never the text. What rejected ones left in the cache is after the
    end of the row: it is masked, and overwritten as the row grows.
    """
    logits, cache = decode.score(program, params, cache, tokens, rows)
    chosen = sample(logits, draws, rows.positions(tokens.shape[1]) + 1)
    draft = jax.reshard(tokens, jax.typeof(chosen).sharding.spec)[:, 1:]
    is_draft = jnp.arange(1, tokens.shape[1]) < rows.lengths[:, None]
    is_draft = jax.reshard(is_draft, jax.typeof(chosen).sharding.spec)
    agrees = (draft == chosen[:, :-1]) & is_draft
    accepted = jnp.cumprod(agrees.astype(jnp.int32), 1).sum(1)
    return VerifiedTokens(accepted, chosen), cache
