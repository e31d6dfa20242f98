"""Values as people write them, on a command line or in Python: numbers, or text such as `4Mi`."""

import math

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.units import format_si, parse_count, parse_length, parse_seconds

Count = int | str
Number = float | str

_MOST_TOKENS = 10**15  # a step of more tokens than all the text there is
_LONGEST_SEQ = 10**9


def slice_of(on: str | Slice) -> Slice:
    return on if isinstance(on, Slice) else parse_slice(on)


def parse_seq(seq: Count) -> int:
    """A context length; 8k of a sequence are 8,192."""
    length = parse_length(str(seq), what="--seq")
    if not 1 <= length <= _LONGEST_SEQ:
        raise UsageError(f"--seq {seq} is not a context", hint="write a length such as 8192")
    return length


def whole_sequences(batch: Count, seq: int) -> int:
    """The sequences of `--batch` tokens; a broken one is refused with the nearest whole batch."""
    tokens = parse_count(str(batch), what="--batch")
    if tokens < seq or tokens % seq or tokens > _MOST_TOKENS:
        whole = min(max(1, tokens // seq) * seq, _MOST_TOKENS // seq * seq)
        raise UsageError(
            f"--batch {batch} is not a whole number of sequences of {seq:,} tokens"
            f" up to {format_si(_MOST_TOKENS, 'tokens')}",
            hint=f"write --batch {whole}",
        )
    return tokens // seq


def nearest_sequences(batch: Count, seq: int) -> tuple[int, bool]:
    """The nearest number of sequences to `--batch` tokens, and whether it is exactly that."""
    tokens = parse_count(str(batch), what="--batch")
    if tokens < seq or tokens > _MOST_TOKENS:
        return whole_sequences(batch, seq), True  # says what is wrong
    sequences = round(tokens / seq)
    return sequences, sequences * seq == tokens


def promised_s(time: Number | None, what: str) -> float:
    """A promised time; infinite where nothing was."""
    if time is None:
        return math.inf
    return parse_seconds(time if isinstance(time, str) else f"{time:.12g}", what=what)
