"""The wire format: many messages at once are read as one by one, and nothing runs over its end."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.measure.trace.events import decode, split
from rooflight.measure.trace.wire import Malformed, fields, numbers, text, varint

from . import writer

_value = st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300), st.floats(allow_nan=False))
_message = st.lists(st.tuples(st.integers(1, 40), _value), max_size=8)


def _bytes(message: list[tuple[int, int | bytes | float]]) -> bytes:
    out = b""
    for key, value in message:
        if isinstance(value, int):
            out += writer.number(key, value)
        elif isinstance(value, bytes):
            out += writer.message(key, value)
        else:
            out += writer.varint(key << 3 | 1) + struct.pack("<d", value)
    return out


@settings(max_examples=60)
@given(st.lists(_message, min_size=1, max_size=8), st.integers(1, 30))
def test_many_messages_at_once_are_read_as_one_by_one(
    messages: list[list[tuple[int, int | bytes | float]]], times: int
) -> None:
    payloads = [_bytes(message) for message in messages] * times
    data = b"".join(payloads)
    stops = np.cumsum([len(p) for p in payloads])
    starts = stops - np.array([len(p) for p in payloads])
    found: list[list[tuple[int, int, int]]] = [[] for _ in payloads]
    for batch in decode(data, np.frombuffer(data, np.uint8), starts, stops):
        rows = zip(batch.owner, batch.key, batch.value, batch.start, strict=True)
        for owner, key, value, start in rows:
            place = int(start) if key & 7 == 2 else 0
            found[int(owner)].append((int(key), int(value), place))
    for own, start, stop in zip(found, starts.tolist(), stops.tolist(), strict=True):
        one_by_one = fields(data, start, stop)
        assert own == [
            (f.number << 3 | f.wire, f.value, f.start if f.wire == 2 else 0) for f in one_by_one
        ]


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_number_is_read_as_written(value: int) -> None:
    data = writer.varint(value)
    assert varint(data, 0, len(data)) == (value % 2**64, len(data))


@given(st.lists(st.binary(max_size=400), max_size=40), st.integers(0, 2**40))
def test_a_message_is_split_into_its_repeated_fields_and_the_rest(
    payloads: list[bytes], other: int
) -> None:
    data = writer.number(9, other) + b"".join(writer.message(4, p) for p in payloads)
    found, others = split(data, np.frombuffer(data, np.uint8), 0, len(data), (4, 5))
    assert [data[a:b] for a, b in found[4].pairs()] == payloads
    assert not len(found[5])
    assert [(f.number, f.value) for f in others] == [(9, other)]


def test_windows_of_a_large_message_join_without_a_seam() -> None:
    payloads = [bytes(i % 251 for _ in range(i % 300)) for i in range(20_000)]
    data = b"".join(writer.message(4, p) for p in payloads)
    assert len(data) > 2**21
    found, _ = split(data, np.frombuffer(data, np.uint8), 0, len(data), (4,))
    assert [data[a:b] for a, b in found[4].pairs()] == payloads


def test_packed_and_single_numbers_are_the_same() -> None:
    packed = writer.message(3, writer.varint(5) + writer.varint(300))
    single = writer.number(3, 5) + writer.number(3, 300)
    for data in (packed, single):
        assert [n for f in fields(data, 0, len(data)) for n in numbers(data, f)] == [5, 300]


def test_text_that_is_not_utf8_is_shown_as_bytes() -> None:
    data = writer.message(2, b"a\xff")
    (one,) = fields(data, 0, len(data))
    assert text(data, one) == "a\\xff"


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # a key without its value
        b"\x08" + b"\x80" * 11,  # a number that never ends
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2**64 - 1 bytes
        b"\x0a\x05ab",  # five bytes where two are
        b"\x0b\x00",  # a group, which nobody writes
        b"\x09\x00\x00",  # two bytes of eight
        b"\x0d\x00",
    ],
)
def test_what_runs_over_its_end_is_refused_by_both_readers(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(fields(data, 0, len(data)))
    many = data * 100
    starts = np.arange(0, len(many), len(data))
    with pytest.raises(Malformed):
        list(decode(many, np.frombuffer(many, np.uint8), starts, starts + len(data)))
