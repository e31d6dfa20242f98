"""`Device`: weights, cache and state on the mesh, and the verbs that change them.

Every verb is one dispatch of a function that was compiled by `warm`; it returns before the device
is done. What a call found is a `PendingResult`, whose `read` waits.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rooflight.program.decode.cache import Layers, check_rows_only, init_cache
from rooflight.program.decode.form import decode_form, serving_weights
from rooflight.program.decode.pages import KvGroup, Values
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.program.shardings import device_mesh
from rooflight.serve.engine.config import EngineConfig, smallest
from rooflight.serve.engine.pages import Pages
from rooflight.serve.engine.request import MOST_BIASES, Mask, Sampling
from rooflight.serve.engine.step_function import (
    EVERY,
    WORD,
    Packed,
    SlotState,
    draft,
    score_draft,
    set_adjustments,
    set_masks,
    set_token,
    step,
)

Ints = np.ndarray[Any, np.dtype[np.int32]]
_CHECKS, _PROPOSALS = (
    -1,
    -2,
)  # the kinds of a call that checks draft tokens, and of one that makes them


class Tile(NamedTuple):
    """Some tokens of a prompt, from position `start` of its row on."""

    row: int
    start: int
    tokens: Sequence[int]
    is_last: bool  # of the prompt: the row makes its next token


class PendingResult(NamedTuple):
    """The results of a dispatch, still on their way."""

    array: jax.Array

    def read(self) -> Ints:
        """Waits: [rows, 2 + 2 K], a token, the bits of its log probability, then the top K."""
        return np.asarray(self.array)


class Device:
    """One replica's mesh, as the engine sees it."""

    def __init__(self, program: Program, params: Tree, config: EngineConfig) -> None:
        check_rows_only(program.constraints)
        self.config = config
        self.num_compilations = 0
        self._program = program
        self._mesh = device_mesh(program.constraints.axes)
        with jax.set_mesh(self._mesh):
            self._params = serving_weights(params)
            is_by_row = decode_form().is_by_row
        # Row by row a call reads no more of a table than there is.
        self._widths = config.table_widths[-1:] if is_by_row else config.table_widths
        self._compiled: dict[tuple[int, int, int], Any] = {}
        self._setters: dict[Any, Any] = {}  # functions that change the state, by shapes
        # What a call says of each row, fields and table; the last row is nobody's.
        self._lines = np.zeros((config.max_rows + 1, Packed.COUNT + config.max_blocks), np.int32)
        self._lines[:, Packed.ROW] = np.arange(config.max_rows + 1)
        self._empty_cache = self._compile(
            partial(
                init_cache,
                program,
                num_blocks=config.num_blocks,
                block_size=config.block_tokens,
                dtype=config.cache_dtype,
                spread=config.spread,
            )
        )
        self.reset()
        self.pages = Pages(self._mesh, self._cache, config.table_widths, self._compile)

    def reset(self) -> None:
        """An empty cache and state: what was there is gone."""
        rows, words = self.config.max_rows + 1, -(-self._program.model.vocab // WORD)
        self._cache: Layers = self._empty_cache()
        tokens, masks = np.zeros(rows, np.int32), np.full((rows, words), EVERY, np.uint32)
        history = np.zeros((rows, self.config.max_model_tokens), np.int32)
        biases = np.zeros((rows, 2, MOST_BIASES), np.int32)
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        state = (tokens, masks, history, biases)
        self._state = SlotState(*(jax.device_put(x, everywhere) for x in state))

    # The verbs

    def open_row(self, row: int, sampling: Sampling, logprobs: int) -> None:
        """How a row draws from now on."""
        line = self._lines[row]
        line[Packed.TOP_K] = sampling.top_k
        line[Packed.SEED] = sampling.seed & 0x7FFFFFFF
        line[Packed.LOGPROBS], line[Packed.PROMPT] = logprobs, 0
        floats = line.view(np.float32)
        floats[[Packed.TEMPERATURE, Packed.TOP_P]] = sampling.temperature, sampling.top_p
        floats[Packed.MIN_P] = sampling.min_p

    def adjust(self, row: int, sampling: Sampling, prompt: int, tokens: Sequence[int]) -> None:
        """Penalties and biases of a row with these tokens so far, the first of them its prompt."""
        line = self._lines[row]
        line[Packed.PROMPT] = prompt
        line.view(np.float32)[[Packed.PRESENCE, Packed.FREQUENCY, Packed.REPETITION]] = (
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        )
        history = np.zeros(self.config.max_model_tokens, np.int32)
        history[: len(tokens)] = tokens
        biases = np.zeros((2, MOST_BIASES), np.int32)
        for i, (token, bias) in enumerate(sampling.logit_bias):
            biases[0, i], biases[1].view(np.float32)[i] = token, bias
        self._set(set_adjustments, np.int32(row), history, biases)

    def write_table(self, row: int, start: int, blocks: Sequence[int]) -> None:
        """Blocks that a row takes from now on."""
        at = Packed.COUNT + start
        self._lines[row, at : at + len(blocks)] = blocks

    def prefill(self, tiles: Sequence[Tile]) -> PendingResult:
        """Computes tiles of prompts, which may be of the same row."""
        config = self.config
        size, count = config.tile_tokens, smallest(config.tile_counts, len(tiles))
        tokens = np.zeros((count, size), np.int32)
        rows = np.full(count, config.max_rows)
        starts, lengths = np.zeros((2, count), np.int32)
        for i, tile in enumerate(tiles):
            tokens[i, : len(tile.tokens)] = tile.tokens
            rows[i], starts[i], lengths[i] = tile.row, tile.start, len(tile.tokens)
        lines = self._gather(rows, starts, lengths)
        for i, tile in enumerate(tiles):
            if not tile.is_last:
                lines[i, Packed.ROW] = config.max_rows
        return self._dispatch(np.concatenate([lines, tokens], 1), size)

    def generate(self, rows: Sequence[int], starts: Sequence[int]) -> PendingResult:
        """One more token for each row, after the one it made last, which is at its start."""
        return self._dispatch(self._of_rows(rows, starts, 1), 0)

    def score_draft(
        self, rows: Sequence[int], starts: Sequence[int], tokens: Sequence[Sequence[int]]
    ) -> PendingResult:
        """What each row draws after its last token, which is at its start, and its draft tokens.

        Found is [rows, draft tokens + 1, 2 + 2 K].
        """
        lines = self._of_rows(rows, starts, [len(some) for some in tokens])
        given = np.zeros((len(lines), self.config.num_draft + 1), np.int32)
        for i, some in enumerate(tokens):
            given[i, : len(some)] = some
        return self._dispatch(np.concatenate([lines, given], 1), _CHECKS)

    def draft(
        self, rows: Sequence[int], starts: Sequence[int], last: Sequence[int], rooms: Sequence[int]
    ) -> PendingResult:
        """What rows would draw after their last tokens; each has room for so many draft tokens.

        Found is [rows, draft tokens + 1]; the last column is no draft.
        """
        lines = self._of_rows(rows, starts, [room + 1 for room in rooms])
        given = np.zeros((len(lines), 1), np.int32)
        given[: len(rows), 0] = last
        return self._dispatch(np.concatenate([lines, given], 1), _PROPOSALS)

    def read(self, blocks: Sequence[int], group: KvGroup) -> Values:
        """What some layers have in some blocks."""
        return self.pages.read(self._cache, blocks, group)

    def insert(self, blocks: Sequence[int], group: KvGroup, values: Values) -> None:
        """What some layers have in some blocks from now on."""
        self._cache = self.pages.write(self._cache, blocks, group, values)

    def start_row(self, row: int, token: int) -> None:
        """The last token of a row whose cache was inserted."""
        self._set(set_token, np.int32(row), np.int32(token))

    def _of_rows(
        self, rows: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | int
    ) -> Ints:
        """The lines of a call of some rows, and of nobody's up to a size that was compiled."""
        num, count = len(rows), smallest(self.config.row_counts, len(rows))
        padded = np.full(count, self.config.max_rows)
        places, tokens = np.zeros((2, count), np.int32)
        padded[:num], places[:num], tokens[:num] = rows, starts, lengths
        return self._gather(padded, places, tokens)

    def _gather(self, rows: Any, starts: Ints, lengths: Ints) -> Ints:
        """The lines of some rows, with as much of their tables as the longest needs."""
        config = self.config
        blocks = -(-int((starts + lengths).max()) // config.block_tokens)
        lines = self._lines[rows, : Packed.COUNT + smallest(self._widths, blocks)]
        lines[:, Packed.START], lines[:, Packed.LENGTH] = starts, lengths
        return lines

    def allow(self, masks: Sequence[tuple[int, Mask | None]]) -> None:
        """Which tokens rows may draw from now on."""
        count = smallest(self.config.row_counts, len(masks))
        rows = np.full(count, self.config.max_rows, np.int32)
        words = np.full((count, self._state.masks.shape[1]), EVERY, np.uint32)
        for i, (row, mask) in enumerate(masks):
            rows[i] = row
            if mask is not None:
                padded = np.zeros(words.shape[1] * WORD, np.bool_)
                padded[: len(mask)] = mask
                words[i] = np.packbits(padded, bitorder="little").view(np.uint32)
        self._set(set_masks, rows, words)

    # Compilation

    def warm(self, *, is_drafter: bool = False) -> None:
        """Compiles everything that can ever be called, or that a drafter needs."""
        config = self.config
        kinds = [_PROPOSALS] if is_drafter else [0, _CHECKS] if config.num_draft else [0]
        for width in self._widths:
            for count, kind in product(config.row_counts, kinds):
                self._function(count, width, kind)
            for count in config.tile_counts:
                self._function(count, width, config.tile_tokens)
        if is_drafter:
            return
        state, zero = self._state, np.int32(0)
        for count in config.row_counts:
            words = np.zeros((count, state.masks.shape[1]), np.uint32)
            self._setter(set_masks, np.zeros(count, np.int32), words)
        more = (np.zeros(x.shape[1:], np.int32) for x in (state.history, state.biases))
        self._setter(set_adjustments, zero, *more)
        if config.moves_blocks or config.host_blocks:
            self.pages.warm()
            self._setter(set_token, zero, zero)

    def _dispatch(self, packed: Ints, kind: int) -> PendingResult:
        """Runs the function of some kind: `_DRAFTS`, or as many tokens of prompts a line."""
        count, columns = packed.shape
        width = columns - Packed.COUNT - self._num_packed(kind)
        run = self._function(count, width, kind)
        found, self._cache, self._state = run(self._params, self._cache, self._state, packed)
        found.copy_to_host_async()
        return PendingResult(found)

    def _num_packed(self, kind: int) -> int:
        return {_CHECKS: self.config.num_draft + 1, _PROPOSALS: 1}.get(kind, kind)

    def _function(self, count: int, width: int, kind: int) -> Any:
        key = (count, width, kind)
        if key not in self._compiled:
            num_tokens = self._num_packed(kind)
            run = self._kinds(kind, width, num_tokens)
            packed = self._like((count, Packed.COUNT + width + num_tokens), jnp.int32)
            taken = (self._params, self._cache, self._state, packed)
            self._compiled[key] = self._compile(run, *taken, donate=(1, 2))
        return self._compiled[key]

    def _kinds(self, kind: int, width: int, num_tokens: int) -> Any:
        program, num_top = self._program, min(self.config.max_logprobs, self._program.model.vocab)
        if kind == _PROPOSALS:
            return partial(draft, program, width=width, num_draft=self.config.num_draft)
        if kind == _CHECKS:
            return partial(score_draft, program, width=width, num_top=num_top)
        return partial(step, program, width=width, num_tokens=num_tokens, num_top=num_top)

    def _set(self, function: Any, *given: Any) -> None:
        self._state = self._setter(function, *given)(self._state, *given)

    def _setter(self, function: Any, *given: Any) -> Any:
        key = (function, *(x.shape for x in given))
        if key not in self._setters:
            like = (self._like(x.shape, x.dtype) for x in given)
            self._setters[key] = self._compile(function, self._state, *like, donate=(0,))
        return self._setters[key]

    def _compile(self, function: Any, *taken: Any, donate: tuple[int, ...] = ()) -> Any:
        self.num_compilations += 1
        with jax.set_mesh(self._mesh):
            return jax.jit(function, donate_argnums=donate).lower(*taken).compile()

    def _like(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)
