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

    ROW, START, LENGTH, TOP_K, SEED, TEMPERATURE, TOP_P, LOGPROBS = range(8)
    MIN_P, PRESENCE, FREQUENCY, REPETITION = range(8, 12)
    PROMPT, COUNT = 12, 13  # tokens of the prompt of a row whose logits are adjusted, or 0


class SlotState(NamedTuple):
    """What the device keeps of each row, beside the cache; the last row is nobody's."""

    tokens: jax.Array  # [rows + 1], the last one made
    masks: jax.Array  # [rows + 1, V / 32], bits of the tokens that may come next
    history: jax.Array  # [rows + 1, N], the tokens so far of a row whose logits are adjusted
    biases: jax.Array  # [rows + 1, 2, biases], tokens and the bits of what is added to them


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
    drawn, found = _draw(logits, state, fields, at, num_top)
    return found[:, 0], cache, _after(state, row, at[:, 0], drawn[:, 0])


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
    drawn, found = _draw(logits, state, fields, at, num_top)
    is_draft = jnp.arange(1, tokens.shape[1]) < rows.lengths[:, None]
    agrees = (tokens[:, 1:] == drawn[:, :-1]) & is_draft
    accepted = jnp.cumprod(agrees.astype(jnp.int32), 1).sum(1)
    last = jnp.take_along_axis(drawn, accepted[:, None], 1)[:, 0]
    return found, cache, _after(state, row, at[:, 0], last)


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


def _after(state: SlotState, row: jax.Array, at: jax.Array, drawn: jax.Array) -> SlotState:
    """The tokens that were drawn, the last ones of their rows; one too far is dropped.

    Rows whose logits are adjusted have no draft tokens: what they drew is at the first place.
    """
    history = state.history.at[row, at].set(drawn, mode="drop")
    return state._replace(tokens=state.tokens.at[row].set(drawn), history=history)


def _draw(
    logits: jax.Array, state: SlotState, fields: jax.Array, at: jax.Array, num_top: int
) -> tuple[jax.Array, jax.Array]:
    """Tokens [B,T] from logits [B,T,V], and all that the host wants to know [B,T,2 + 2 K]."""
    logits = _changed(logits, state, fields, at[:, 0])
    drawn = sample(logits, _draws(fields), at)
    return drawn, jnp.concatenate([drawn[..., None], _chances(logits, drawn, fields, num_top)], -1)


def _draws(fields: jax.Array) -> Draws:
    return Draws(
        _float(fields[:, Packed.TEMPERATURE]),
        fields[:, Packed.TOP_K],
        _float(fields[:, Packed.TOP_P]),
        fields[:, Packed.SEED],
        _float(fields[:, Packed.MIN_P]),
    )


def set_masks(state: SlotState, rows: jax.Array, masks: jax.Array) -> SlotState:
    """Other masks [B, V / 32] for some rows."""
    return state._replace(masks=state.masks.at[rows].set(masks))


def set_adjustments(
    state: SlotState, row: jax.Array, history: jax.Array, biases: jax.Array
) -> SlotState:
    """The tokens so far of a row, and its biases."""
    return state._replace(
        history=state.history.at[row].set(history), biases=state.biases.at[row].set(biases)
    )


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


def adjusted_logits(
    logits: jax.Array, state: SlotState, fields: jax.Array, at: jax.Array
) -> jax.Array:
    """Logits [B,T,V] less penalties of the tokens before `at`, plus biases, if any row has some.

    As transformers has repetitions, then as OpenAI has the others:
    logit - made * frequency - (made > 0) * presence + bias.
    """
    prompt = fields[:, Packed.PROMPT, None]

    def adjusted() -> jax.Array:
        row, line = fields[:, Packed.ROW], jnp.arange(fields.shape[0])[:, None]
        history, biases = state.history[row], state.biases[row]
        place, none = jnp.arange(history.shape[1]), jnp.zeros(logits.shape[::2], jnp.int32)
        is_before = place < at[:, None]
        seen = none.at[line, history].add(is_before.astype(jnp.int32))
        made = none.at[line, history].add((is_before & (place >= prompt)).astype(jnp.int32))
        bias = jnp.zeros(none.shape).at[line, biases[:, 0]].add(_float(biases[:, 1]))
        penalty = _float(fields[:, [Packed.PRESENCE, Packed.FREQUENCY, Packed.REPETITION]])
        presence, frequency, repetition = (penalty[:, i, None] for i in range(3))
        bias -= made * frequency + (made > 0) * presence
        factor = jnp.where(seen > 0, repetition, 1)[:, None]
        scaled = jnp.where(logits > 0, logits / factor, logits * factor)
        return jnp.where(prompt[:, None] > 0, scaled + bias[:, None], logits)

    return lax.cond(jnp.any(prompt > 0), adjusted, lambda: logits)


def _changed(logits: jax.Array, state: SlotState, fields: jax.Array, at: jax.Array) -> jax.Array:
    """Adjusted logits [B,T,V] of the tokens whose bits are set; as they are if no row has any.

    One branch for both, so that rows without either wait for no more than they did.
    """
    words = state.masks[fields[:, Packed.ROW]]

    def changed() -> jax.Array:
        bits = words[:, :, None] >> jnp.arange(WORD, dtype=jnp.uint32) & 1
        is_set = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]] == 1
        return jnp.where(is_set[:, None], adjusted_logits(logits, state, fields, at), -jnp.inf)

    is_plain = jnp.all(words == jnp.uint32(EVERY)) & jnp.all(fields[:, Packed.PROMPT] == 0)
    return lax.cond(is_plain, lambda: logits, changed)


def _float(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _int(value: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(value, jnp.int32)
