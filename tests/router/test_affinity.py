"""What counts as the same beginning."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rooflight.serve.router.forward import prefix_key

LONG = "You are a helpful assistant. " * 100  # above the bytes that are looked at
SYSTEM = {"role": "system", "content": LONG}


def _prompt(text: str, **fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": text, **fields}).encode()


def _chat(*messages: dict[str, str], **fields: object) -> bytes:
    return json.dumps({"model": "m", **fields, "messages": messages}).encode()


def test_prompts_that_begin_alike_have_one_key() -> None:
    assert prefix_key(_prompt(LONG + "a", n=1), "k") == prefix_key(_prompt(LONG + "b", n=2), "k")
    assert prefix_key(_prompt("x" + LONG), "k") != prefix_key(_prompt("y" + LONG), "k")


def test_api_keys_and_models_share_nothing() -> None:
    assert prefix_key(_prompt(LONG), "a") != prefix_key(_prompt(LONG), "b")
    assert prefix_key(_prompt(LONG), "") != prefix_key(_prompt(LONG).replace(b'"m"', b'"n"'), "")


def test_the_turns_of_a_conversation_stay_together_and_conversations_spread() -> None:
    first = {"role": "user", "content": "What is a roof?"}
    turns = [first, {"role": "assistant", "content": "A bound."}, {"role": "user", "content": "?"}]
    start = prefix_key(_chat(SYSTEM, first, seed=1), "k")
    assert start == prefix_key(_chat(SYSTEM, *turns, temperature=0), "k")
    assert start != prefix_key(_chat(SYSTEM, {"role": "user", "content": "Hi"}), "k")


def test_a_first_message_longer_than_what_is_read_still_has_a_key() -> None:
    endless = {"role": "user", "content": "x" * 200_000}
    assert prefix_key(_chat(endless), "") == prefix_key(_chat(endless, SYSTEM), "")


@given(st.binary(max_size=300), st.text(max_size=20))
def test_any_bytes_have_a_key(body: bytes, authorization: str) -> None:
    key = prefix_key(body, authorization.encode("utf-8", "ignore").decode())
    assert len(key) == 16
    assert len(prefix_key(b'{"messages": [' + body, "")) == 16
    assert len(prefix_key(b'{"messages": ' + b"[" * 3000 + body, "")) == 16
