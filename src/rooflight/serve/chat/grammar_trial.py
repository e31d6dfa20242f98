"""Compiles the schemas of clients where it hurts nobody: see `bounded`. Imports no jax."""

from collections.abc import Callable, Sequence
from typing import Any


def make_vocabulary(tokenizer: str, vocab: int, ends: Sequence[int]) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(tokenizer, n_vocab=vocab, eos_token=[*ends] or None)


def make_matcher(vocabulary: Any, schema: str) -> Any:
    """Raises ValueError if it is no schema, or larger than the library is allowed to follow."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        text = LLMatcher.grammar_from_json_schema(schema)
    except ValueError:
        raise ValueError("not a JSON schema") from None
    limits = LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
    )
    matcher = LLMatcher(vocabulary, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError("a schema that is wrong or too complex")
    return matcher


def make(told: Sequence[Any]) -> Callable[[str], str]:
    """Why a schema cannot be followed; nothing if it can."""
    vocabulary = make_vocabulary(*told)

    def why_not(schema: str) -> str:
        try:
            make_matcher(vocabulary, schema)
        except ValueError as error:
            return str(error)
        return ""

    return why_not
