"""Whole answers as text: the same as `json.dumps` writes, and others run meanwhile."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any  # JSON

from hypothesis import given
from hypothesis import strategies as st

from rooflight.serve.server.writer import whole_json

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.just([1.5] * 200),
    max_leaves=30,
)


@given(VALUES)
def test_it_is_what_dumps_writes(value: Any) -> None:
    assert whole_json(value) == json.dumps(value).encode()


def longest_wait(write: Callable[[Any], object], value: Any) -> float:
    """Of this thread, while another writes a value."""
    thread = threading.Thread(target=write, args=(value,))
    longest, then = 0.0, time.monotonic()
    thread.start()
    while thread.is_alive():
        time.sleep(0.0005)
        now = time.monotonic()
        longest, then = max(longest, now - then), now
    return longest


def test_it_lets_others_run() -> None:
    entry = {"token": "ab", "logprob": -1.2345678, "bytes": [97, 98]}
    tokens = [{**entry, "top_logprobs": [entry] * 20} for _ in range(4000)]
    value = {"choices": [{"logprobs": {"content": tokens}}]}
    ways = (whole_json, json.dumps)
    own, plain = (min(longest_wait(write, value) for _ in range(3)) for write in ways)
    assert own < plain / 2
