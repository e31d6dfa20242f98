"""The next token of each row, drawn as its own request says.

    p = softmax(logits / temperature), of the top k logits, of the fewest whose p sum to top p,
        of those with p of at least min p times the largest
    token = argmax(log p + Gumbel noise of (seed, position))

The noise belongs to the seed of a row and the position of the token, not to the batch or to how
many tokens a call scores: a row draws the same tokens alone, in a batch, or from draft tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.program.shardings import map_blocks


class Draws(NamedTuple):
    """How each row [B] draws."""

    temperature: jax.Array  # 0 takes the largest logit
    top_k: jax.Array  # 0 takes all
    top_p: jax.Array  # 1 takes all
    seed: jax.Array
    min_p: jax.Array | None = None  # 0 takes all


def sample(logits: jax.Array, draws: Draws, positions: jax.Array) -> jax.Array:
    """tokens[B,T] from logits[B,T,V], each at its position [B,T].

    A vocabulary that is split is gathered: V numbers per row are little beside a layer's weights.
    To draw takes a sort of it, which is done only if a row asks for more than its largest logit.
    """
    place = PartitionSpec(jax.typeof(logits).sharding.spec[0], None)
    by_row = PartitionSpec(place[0])
    run = map_blocks(jax.vmap(_rows), (place, by_row, place), place)
    moved = jax.tree.map(lambda x: jax.reshard(x, by_row), draws)
    whole = jax.reshard(logits, PartitionSpec(*place, None))
    at = jax.reshard(positions, place)
    is_drawn = jnp.any(draws.temperature > 0)
    return lax.cond(is_drawn, lambda: run(whole, moved, at), lambda: largest(whole))


def largest(logits: jax.Array) -> jax.Array:
    """The first of the largest along the last dim: argmax, in two reductions that vectorise."""
    top = logits.max(-1, keepdims=True)
    at = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.where(logits == top, at, at.size - 1).min(-1)


def _rows(logits: jax.Array, draws: Draws, positions: jax.Array) -> jax.Array:
    return jax.vmap(_one, in_axes=(0, None, 0))(logits, draws, positions)


def _one(logits: jax.Array, draws: Draws, position: jax.Array) -> jax.Array:
    """One token from logits[V]."""
    kept = jnp.where(_is_kept(logits, draws), logits, -jnp.inf)
    key = jax.random.fold_in(jax.random.key(draws.seed), position)
    noise = jax.random.gumbel(key, logits.shape)
    drawn = kept / jnp.where(draws.temperature > 0, draws.temperature, 1) + noise
    return largest(jnp.where(draws.temperature > 0, drawn, logits))


def _is_kept(logits: jax.Array, draws: Draws) -> jax.Array:
    """The top k, and of their probabilities the largest up to the one that reaches top p.

    The largest is always kept: a top p of 0 is no reason to draw from nothing.
    """
    order = jnp.argsort(-logits)
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(logits.shape[0]))
    in_k = (draws.top_k <= 0) | (rank < draws.top_k)
    scaled = logits / jnp.where(draws.temperature > 0, draws.temperature, 1)
    chance = jax.nn.softmax(jnp.where(in_k, scaled, -jnp.inf))
    before = (jnp.cumsum(chance[order]) - chance[order])[rank]
    kept = in_k & ((before < draws.top_p) | (rank == 0))
    if draws.min_p is None:
        return kept
    return kept & (scaled >= scaled.max() + jnp.log(draws.min_p))
