"""Schemas of clients: those that would take all time and memory are refused, and hurt nobody."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rooflight.serve.chat.bounded import CPU_S, Bounded, TooMuch
from rooflight.serve.chat.grammar_trial import make_matcher, make_vocabulary

BOMB = json.dumps({"type": "integer", "multipleOf": 9999991})
GOOD = json.dumps({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 7}}})
SIZES = st.sampled_from((0, 1, 7, 1000, 9973, 99991, 999983, 2**31 - 1, 2**63, 10**30, -(10**9)))
NUMBERS = st.one_of(SIZES, st.sampled_from((1e-9, 0.1, 1e300, -1e-300, 3.333333333)))


@pytest.fixture(scope="module")
def told() -> tuple[str, int, list[int]]:
    """A tokenizer of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({"<end>": 0} | {c: i for i, c in enumerate(alphabet, 1)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    return words.to_str(), words.get_vocab_size(), [0]


@pytest.fixture(scope="module")
def trial(told: tuple[str, int, list[int]]) -> Iterator[Bounded]:
    found = Bounded("rooflight.serve.chat.grammar_trial", told)
    yield found
    found.stop()


def test_what_takes_too_long_is_refused_and_the_next_is_not(trial: Bounded) -> None:
    before = time.process_time()
    for _ in range(2):
        with pytest.raises(TooMuch):
            trial.ask(BOMB)
        assert trial.ask(GOOD) == ""
    assert trial.ask('{"type": 5}') == "a schema that is wrong or too complex"
    assert time.process_time() - before < CPU_S  # of this process: it only waited


Schema = dict[str, Any]


def members(**kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries({}, optional=kinds)


def typed(name: str, rest: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def with_type(found: Schema) -> Schema:
        return {"type": name, **found}

    return rest.map(with_type)


def pattern(sizes: tuple[int, int]) -> str:
    return f"^(a|b{{0,{sizes[0]}}}){{0,{sizes[1]}}}$"


def numbers_to(count: int) -> Schema:
    return {"enum": [*range(count)]}


def object_of(inner: Schema) -> Schema:
    return {"type": "object", "properties": {"a": inner}}


def any_of(some: list[Schema]) -> Schema:
    return {"anyOf": some}


NUMERIC = members(multipleOf=NUMBERS, minimum=NUMBERS, maximum=NUMBERS, exclusiveMinimum=NUMBERS)
TEXTS = members(minLength=SIZES, maxLength=SIZES, pattern=st.tuples(SIZES, SIZES).map(pattern))
LEAVES = (
    typed("integer", NUMERIC)
    | typed("number", NUMERIC)
    | typed("string", TEXTS)
    | st.sampled_from((0, 1, 5000)).map(numbers_to)
)


def larger(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    lists = typed("array", members(items=inner, minItems=SIZES, maxItems=SIZES))
    return lists | inner.map(object_of) | st.lists(inner, max_size=3).map(any_of)


SCHEMAS = st.recursive(LEAVES, larger, max_leaves=4)


@settings(max_examples=settings().max_examples // 2)
@given(schema=SCHEMAS)
def test_extreme_numbers_are_refused_or_followed_in_little_time(
    trial: Bounded, told: tuple[str, int, list[int]], schema: Schema
) -> None:
    text = json.dumps(schema)
    before = time.process_time()
    try:
        if trial.ask(text):
            return
    except TooMuch:
        return
    make_matcher(make_vocabulary(*told), text)
    assert time.process_time() - before < 4 * CPU_S, schema
