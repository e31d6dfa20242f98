"""What two servers say to each other arrives as it was said, and nothing else does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.serve.disaggregated.messages import (
    First,
    read_first,
    read_order,
    read_parcel,
    read_step,
    write_first,
    write_order,
    write_parcel,
    write_step,
)
from rooflight.serve.disaggregated.transfer import Parcel
from rooflight.serve.engine.request import Delta, EngineRequest, Sampling, TokenLogprobs
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.problem import ApiError

BOUNDS = Bounds(vocab=100, max_model_tokens=64, max_logprobs=5)
TOKENS, CHANCES = st.integers(0, 99), st.floats(-1e4, 0)


@given(
    st.lists(TOKENS, min_size=1, max_size=64),
    st.floats(0, 2),
    st.integers(0, 2**31 - 1),
    st.integers(0, 5),
    st.binary(max_size=32),
)
def test_an_order_arrives(
    prompt: list[int], temperature: float, seed: int, logprobs: int, salt: bytes
) -> None:
    job = EngineRequest(
        7, tuple(prompt), 1, Sampling(temperature, 0.9, 3, seed), logprobs=logprobs, salt=salt
    )
    order = read_order(write_order(job, "mark", 2.5), BOUNDS, 7)
    assert order == ("mark", job, 2.5)


@given(TOKENS, CHANCES, st.dictionaries(TOKENS, CHANCES, max_size=5))
def test_a_first_token_arrives(token: int, chance: float, top: dict[int, float]) -> None:
    found = TokenLogprobs(chance, top)
    said = write_first(Delta(1, (token,), (found,)), 4)
    assert read_first(said, BOUNDS) == First(token, found, 4)
    assert read_first(write_first(Delta(1, (token,)), 4), BOUNDS) == First(token, None, 4)


def test_a_parcel_and_a_step_arrive() -> None:
    parcel = Parcel("127.0.0.1:5", 123, [b"abc", b""])
    assert read_parcel(write_parcel(3, parcel)) == (3, Parcel("127.0.0.1:5", 123), [3, 0])
    assert read_step(write_step(read=2), 4) == (2, None)
    assert read_step(write_step(taken=3), 4) == (None, 3)
    with pytest.raises(ApiError):
        read_step(write_step(read=4), 4)


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_anything_else_is_refused(value: object) -> None:
    for document in (value, {"token": value}, {"prompt": value}):
        text = json.dumps(document)
        with pytest.raises(ApiError):
            read_order(text, BOUNDS, 1)
        with pytest.raises(ApiError):
            read_first(text, BOUNDS)
