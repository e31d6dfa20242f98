"""What the scheduler hands out for one step, and what it says when the step is done."""

from collections.abc import Sequence
from typing import NamedTuple


class PrefillChunk(NamedTuple):
    """Prompt tokens [start, start + tokens) of a row, computed in this step."""

    id: int
    row: int
    start: int
    tokens: int
    is_last: bool  # the row makes a token in this step


class TableWrite(NamedTuple):
    """Entries [start, start + len(blocks)) of a row's block table."""

    row: int
    start: int
    blocks: Sequence[int]


class StepBatch(NamedTuple):
    """One step: rows that decode, chunks that prefill, tables to write before."""

    decode_rows: Sequence[int]
    kv_tokens: int  # positions that the decoding rows attend to, the new ones included
    chunks: Sequence[PrefillChunk]
    writes: Sequence[TableWrite]
    preempted: Sequence[int]  # ids; their rows are gone and they wait again


class StepOutcome(NamedTuple):
    """Ids that leave prefill with a token made, and ids that are done."""

    prefilled: Sequence[int]
    finished: Sequence[int]
