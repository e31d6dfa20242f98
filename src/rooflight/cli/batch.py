"""`--batch` and `--seq`: tokens a step as whole sequences; 8k of a sequence are 8,192."""

from rooflight.errors import UsageError
from rooflight.units import format_si, parse_count, parse_length

_MOST_TOKENS = 10**15  # a step of more tokens than all the text there is
_LONGEST_SEQ = 10**9


def parse_seq(text: str) -> int:
    """A context length from the command line."""
    seq = parse_length(text, what="--seq")
    if not 1 <= seq <= _LONGEST_SEQ:
        raise UsageError(f"--seq {text} is not a context", hint="write a length such as 8192")
    return seq


def whole_sequences(batch: str, seq: int) -> int:
    """The sequences of `--batch` tokens; a broken one is refused with the nearest whole batch."""
    tokens = parse_count(batch, what="--batch")
    if tokens < seq or tokens % seq or tokens > _MOST_TOKENS:
        whole = min(max(1, tokens // seq) * seq, _MOST_TOKENS // seq * seq)
        raise UsageError(
            f"--batch {batch} is not a whole number of sequences of {seq:,} tokens"
            f" up to {format_si(_MOST_TOKENS, 'tokens')}",
            hint=f"write --batch {whole}",
        )
    return tokens // seq


def nearest_sequences(batch: str, seq: int) -> tuple[int, bool]:
    """The nearest number of sequences to `--batch` tokens, and whether it is exactly that."""
    tokens = parse_count(batch, what="--batch")
    if tokens < seq or tokens > _MOST_TOKENS:
        return whole_sequences(batch, seq), True  # says what is wrong
    sequences = round(tokens / seq)
    return sequences, sequences * seq == tokens
