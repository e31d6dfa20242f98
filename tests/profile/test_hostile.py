"""Damaged and hostile files: a table or one sentence, in bounded time and memory."""

import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rooflight.errors import UsageError
from rooflight.measure.trace.overlap import host_gaps
from rooflight.measure.trace.perfetto import perfetto
from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.table import profile
from rooflight.ui.answers.trace import profile_answer
from rooflight.ui.text.answer import answer_text

from ..reference_loop import slowness, standard_s
from .rich import rich_trace
from .tpu import US, tpu_trace
from .tpu import device as tpu_device
from .tpu import host as tpu_host
from .writer import PlaneWriter, event, message, number, space, text, varint

DAMAGED, DAMAGED_IN_FULL = 360, 6000
LONGEST_S = 10.0  # of a standard CPU, for a file of 200 kB; a sound one takes a tenth of one
MOST_BYTES = 500 * 2**20  # more than before all of it
MB = 2**20

Damage = Callable[[random.Random, bytes], bytes]


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(1, len(data))]


def _flip(rng: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 64))):
        spoilt[rng.randrange(len(spoilt))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(spoilt)


def _lengthen(rng: random.Random, data: bytes) -> bytes:
    """A huge number where a length or a value was."""
    at = rng.randrange(len(data))
    return data[:at] + varint(rng.choice((2**31, 2**32, 2**63, 2**64 - 1))) + data[at + 1 :]


def _splice(rng: random.Random, data: bytes) -> bytes:
    """A part moved, repeated or left out."""
    a, b, c = sorted(rng.randrange(len(data)) for _ in range(3))
    return rng.choice((data[:a] + data[b:c] + data[a:b] + data[c:], data[:b] + data[a:], data[b:c]))


def _renumber(rng: random.Random, data: bytes) -> bytes:
    """Another field: keys of the schema for keys of the schema."""
    keys = bytes(number << 3 | wire for number in range(1, 12) for wire in (0, 2))
    places = [at for at in range(min(len(data), 200_000)) if data[at] in keys]
    at = rng.choice(places)
    return data[:at] + bytes([rng.choice(keys)]) + data[at + 1 :]


DAMAGES: tuple[Damage, ...] = (_truncate, _flip, _lengthen, _splice, _renumber)


def _outcome(path: Path) -> str:
    """What a command would do with a file: every table, or one sentence."""
    try:
        _show(path)
    except UsageError as error:
        assert "\n" not in str(error)
        assert error.hint
        return "refused"
    return "read"


def _show(path: Path) -> None:
    trace = read_trace(path)
    for by in ("class", "op"):
        shown = [answer_text(profile_answer(profile(trace, by=by)))]
        assert all(line.isascii() for line in shown)
    for _ in perfetto(trace):
        pass


def _damaged(path: Path, *, count: int, source: bytes, seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes, longest_s = {"read": 0, "refused": 0}, LONGEST_S * slowness()
    for at in range(count):
        path.write_bytes(DAMAGES[at % len(DAMAGES)](rng, source))
        began = time.process_time()
        outcomes[_outcome(path)] += 1
        assert time.process_time() - began < longest_s, f"damage {at} of seed {seed}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MOST_BYTES
    return outcomes


SOURCES = {"written": tpu_trace, "rich": rich_trace, "recorded": EXAMPLE.read_bytes}


@pytest.mark.parametrize(
    ("which", "share"), [("written", 1 / 2), ("rich", 1 / 3), ("recorded", 1 / 6)]
)
def test_a_damaged_trace_gives_a_table_or_a_sentence(
    which: str, share: float, tmp_path: Path
) -> None:
    source = SOURCES[which]()
    count = round(DAMAGED * share)
    outcomes = _damaged(tmp_path / "x.xplane.pb", count=count, source=source, seed=1)
    assert outcomes["refused"] > count / 4
    assert outcomes["read"] > count / 20


def test_a_program_that_cannot_be_read_is_left_out_of_the_memory_alone(tmp_path: Path) -> None:
    path, data = tmp_path / "x.xplane.pb", rich_trace()
    at = data.index(b"2", data.index(b"jit_step(77)*") + 13)  # the stat that has its buffers
    found: list[tuple[int, int]] = []
    for one in (data, data[:at] + b"\xa3" + data[at + 1 :]):
        path.write_bytes(one)
        shown = profile(read_trace(path))
        found.append((len(shown.programs), len(shown.table.rows)))
    (sound, rows), spoilt = found
    assert sound and spoilt == (sound - 1, rows)


@pytest.mark.full
@pytest.mark.parametrize("which", SOURCES)
def test_thousands_of_damaged_traces_give_a_table_or_a_sentence(which: str, tmp_path: Path) -> None:
    source = SOURCES[which]()
    outcomes = _damaged(tmp_path / "x.xplane.pb", count=DAMAGED_IN_FULL // 3, source=source, seed=2)
    assert sum(outcomes.values()) == DAMAGED_IN_FULL // 3


def _deep(levels: int) -> bytes:
    """A message in a message in a message."""
    data = b""
    for _ in range(levels):
        data = message(1, data)
    return data


def _long_event() -> bytes:
    """Many events, one of them with a million stats."""
    plane = PlaneWriter("/device:TPU:0")
    kind = plane.kind("a")
    events = [event(kind, at, 1) for at in range(200)]
    said = message(4, plane.stat("run_id", 1)) * 200_000
    plane.line("XLA Modules", [*events, event(kind, 300, 1) + said])
    plane.line("XLA Ops", events)
    return space(plane)


def _nested_ops() -> bytes:
    """A hundred thousand loops, one in another."""
    plane = PlaneWriter("/device:TPU:0")
    kind = plane.kind("%while.1 = x", hlo_category="while")
    count = 100_000
    plane.line("XLA Ops", [event(kind, at, 2 * (count - at)) for at in range(count)])
    return space(plane)


def _empty_parts() -> bytes:
    """As many empty planes, and a plane of as many empty lines, as fit."""
    return message(1, b"\x1a\x00" * MB) + b"\x0a\x00" * MB


def _deep_shapes() -> bytes:
    """A program whose tuples nest without end, for an op of a CPU."""
    shape = b""
    for _ in range(20_000):
        shape = message(4, shape)
    body = message(2, text(1, "op") + text(2, "fusion") + message(3, shape))
    program = message(1, text(1, "m") + message(3, body))
    meta, host = PlaneWriter("/host:metadata"), PlaneWriter("/host:CPU")
    meta.kind_of("m(0)", "", {"Hlo Proto": program})
    said = [host.stat(k, v) for k, v in (("hlo_op", "op"), ("hlo_module", "m"), ("program_id", 0))]
    host.line("tf_XLAEigen", [event(host.kind("op"), 0, 5, *said)])
    return space(meta, host)


def _numbers_for_texts() -> bytes:
    """Ops whose names are numbers, as if each were a text of megabytes."""
    host = PlaneWriter("/host:CPU")
    kind, word = host.kind("op"), number(1, host.word("hlo_op"))
    events = [event(kind, at, 1, word + number(7, 2**63 + at * 2**41)) for at in range(2000)]
    host.line("tf_XLAEigen", events)
    return space(host)


def _many_steps() -> bytes:
    """Thousands of steps of thousands of ops."""
    plane = PlaneWriter("/device:TPU:0")
    kinds = [plane.kind(f"%op.{i} = x") for i in range(3000)]
    plane.line("XLA Ops", [event(kind, at * 10, 5) for at, kind in enumerate(kinds)])
    plane.line("Steps", [event(plane.kind(f"s{i}"), i * 10, 5) for i in range(3000)])
    return space(plane)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: _deep(50_000), "refused"),
        (_long_event, "read"),
        (_nested_ops, "read"),
        (_empty_parts, "refused"),
        (_deep_shapes, "read"),
        (_numbers_for_texts, "refused"),
        (_many_steps, "refused"),
        (lambda: number(1, 0) * 2 * MB, "refused"),
        (lambda: b"\x22\x00" * MB, "refused"),
    ],
    ids=[
        *(
            "deep",
            "one long event",
            "nested ops",
            "empty parts",
            "deep shapes",
            "numbers for texts",
        ),
        *("many steps", "fields", "keys"),
    ],
)
def test_a_hostile_trace_ends_in_bounded_time(
    make: Callable[[], bytes], expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(make())
    found: list[str] = []
    assert standard_s(lambda: found.append(_outcome(path)), rounds=1) < LONGEST_S
    assert found == [expected]


def test_names_with_control_characters_reach_no_terminal(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:TPU:0")
    plane.line("XLA Ops", [event(plane.kind("\x1b[31mred\n\u202e", tf_op="\x07/x/y"), 0, 10)])
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane))
    assert _outcome(path) == "read"


def test_a_damaged_name_of_the_host_does_not_hide_the_devices(tmp_path: Path) -> None:
    host = tpu_host(steps=3)
    host.entries.append(message(4, number(1, 99) + message(2, b"\x0c")))  # a wire type of no field
    host.line("python", [event(99, 91 * US, 6 * US)])
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(tpu_device("/device:TPU:0", steps=3), host))
    assert _outcome(path) == "read"
    assert "unreadable 99" in {gap.doing for gap in host_gaps(read_trace(path))}
