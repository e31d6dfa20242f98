"""What the device does in one call: tokens into the cache, and the next token of each row.

    packed[B, fields + P + T] -> found[B, 2 + 2 K], the tokens also to `SlotState.tokens`

All numbers that the host has for a call come in one array, all that it wants to know leave in one:
floats travel as the bits of an int32. A row that decodes takes its token from `SlotState.tokens`,
where the call before left it: the host need not have read it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.program.decode.cache import Layers
from rooflight.program.decode.sampling import Draws, sample
from rooflight.program.decode.step import prefill_chunk, score
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.program.paged.blocks import PagedBatch

WORD, EVERY = 32, 0xFFFFFFFF  # tokens of a mask in one number, and one that allows all


class Packed:
    """Columns of a packed call, before tables and tokens."""

    ROW, START, LENGTH, TOP_K, SEED, TEMPERATURE, TOP_P, LOGPROBS, COUNT = range(9)


class SlotState(NamedTuple):
    """What the device keeps of each row, beside the cache; the last row is nobody's."""

    tokens: jax.Array  # [rows + 1], the last one made
    masks: jax.Array  # [rows + 1, V / 32], bits of the tokens that may come next


def step(
    program: Program,
    params: Tree,
    cache: Layers,
    state: SlotState,
    packed: jax.Array,
    *,
    width: int,
    num_tokens: int,
    num_top: int,
) -> tuple[jax.Array, Layers, SlotState]:
    """Extends rows by `num_tokens` packed tokens, or by the one in the state if that is 0."""
    fields, rows = _rows(packed, width)
    row = fields[:, Packed.ROW]
    tokens = packed[:, Packed.COUNT + width :] if num_tokens else state.tokens[row][:, None]
    logits, cache = prefill_chunk(program, params, cache, tokens, rows)
    logits = jax.reshard(logits, PartitionSpec(None, None))[:, None]
    at = (rows.starts + rows.lengths)[:, None]
    drawn, found = _draw(logits, state.masks[row], fields, at, num_top)
    return found[:, 0], cache, state._replace(tokens=state.tokens.at[row].set(drawn[:, 0]))


def score_draft(
    program: Program,
    params: Tree,
    cache: Layers,
    state: SlotState,
    packed: jax.Array,
    *,
    width: int,
    num_top: int,
) -> tuple[jax.Array, Layers, SlotState]:
    """The last token of each row and the draft tokens after it: what the row draws after each.

    The next token of a row is the one after the last draft that it would have drawn itself.
    """
    fields, rows = _rows(packed, width)
    row, tokens = fields[:, Packed.ROW], packed[:, Packed.COUNT + width :]
    logits, cache = score(program, params, cache, tokens, rows)
    logits = jax.reshard(logits, PartitionSpec(None, None, None))
    at = rows.positions(tokens.shape[1]) + 1
    drawn, found = _draw(logits, state.masks[row], fields, at, num_top)
    is_draft = jnp.arange(1, tokens.shape[1]) < rows.lengths[:, None]
    agrees = (tokens[:, 1:] == drawn[:, :-1]) & is_draft
    accepted = jnp.cumprod(agrees.astype(jnp.int32), 1).sum(1)
    last = jnp.take_along_axis(drawn, accepted[:, None], 1)[:, 0]
    return found, cache, state._replace(tokens=state.tokens.at[row].set(last))


def draft(
    program: Program,
    params: Tree,
    cache: Layers,
    state: SlotState,
    packed: jax.Array,
    *,
    width: int,
    num_draft: int,
) -> tuple[jax.Array, Layers, SlotState]:
    """What each row would draw next, token by token: [B, draft tokens + 1], the last no draft.

    It is computed so that the cache has the last draft, too. A row stops writing to its cache after
    as many tokens as it has room for. Noise is that of the row's seed and the token's position, as
    in the model that checks: where both have the same chances they draw the same.
    """
    fields, rows = _rows(packed, width)

    def more(
        i: jax.Array, carried: tuple[Layers, jax.Array, jax.Array]
    ) -> tuple[Layers, jax.Array, jax.Array]:
        cache, last, drawn = carried
        here = PagedBatch(rows.starts + i, (i < rows.lengths).astype(jnp.int32), rows.tables)
        logits, cache = prefill_chunk(program, params, cache, last[:, None], here)
        logits = jax.reshard(logits, PartitionSpec(None, None))[:, None]
        last = sample(logits, _draws(fields), here.starts[:, None] + 1)[:, 0]
        return cache, last, drawn.at[:, i].set(last)

    last = packed[:, Packed.COUNT + width]
    drawn = jnp.zeros((packed.shape[0], num_draft + 1), jnp.int32)
    cache, _, drawn = lax.fori_loop(0, num_draft + 1, more, (cache, last, drawn))
    return drawn, cache, state


def _rows(packed: jax.Array, width: int) -> tuple[jax.Array, PagedBatch]:
    fields, tables = packed[:, : Packed.COUNT], packed[:, Packed.COUNT : Packed.COUNT + width]
    return fields, PagedBatch(fields[:, Packed.START], fields[:, Packed.LENGTH], tables)


def _draw(
    logits: jax.Array, masks: jax.Array, fields: jax.Array, at: jax.Array, num_top: int
) -> tuple[jax.Array, jax.Array]:
    """Tokens [B,T] from logits [B,T,V], and all that the host wants to know [B,T,2 + 2 K]."""
    logits = _masked(logits, masks)
    drawn = sample(logits, _draws(fields), at)
    return drawn, jnp.concatenate([drawn[..., None], _chances(logits, drawn, fields, num_top)], -1)


def _draws(fields: jax.Array) -> Draws:
    return Draws(
        _float(fields[:, Packed.TEMPERATURE]),
        fields[:, Packed.TOP_K],
        _float(fields[:, Packed.TOP_P]),
        fields[:, Packed.SEED],
    )


def set_masks(state: SlotState, rows: jax.Array, masks: jax.Array) -> SlotState:
    """Other masks [B, V / 32] for some rows."""
    return state._replace(masks=state.masks.at[rows].set(masks))


def set_token(state: SlotState, row: jax.Array, token: jax.Array) -> SlotState:
    """Another last token for a row."""
    return state._replace(tokens=state.tokens.at[row].set(token))


def _chances(logits: jax.Array, drawn: jax.Array, fields: jax.Array, num_top: int) -> jax.Array:
    """Log probabilities of what was drawn and of the likeliest, if any row wants them."""

    def wanted() -> jax.Array:
        chances = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(chances, drawn[..., None], -1)
        top, at = lax.top_k(chances, num_top)
        return jnp.concatenate([_int(own), at, _int(top)], -1)

    def unwanted() -> jax.Array:
        return jnp.zeros((*drawn.shape, 1 + 2 * num_top), jnp.int32)

    return lax.cond(jnp.any(fields[:, Packed.LOGPROBS] > 0), wanted, unwanted)


def _masked(logits: jax.Array, words: jax.Array) -> jax.Array:
    """Logits [B,T,V] of the tokens whose bits are set, if any bit is not."""

    def masked() -> jax.Array:
        bits = words[:, :, None] >> jnp.arange(WORD, dtype=jnp.uint32) & 1
        is_set = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]] == 1
        return jnp.where(is_set[:, None], logits, -jnp.inf)

    return lax.cond(jnp.all(words == jnp.uint32(EVERY)), lambda: logits, masked)


def _float(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _int(value: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(value, jnp.int32)
