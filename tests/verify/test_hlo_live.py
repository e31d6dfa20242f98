"""Live bytes along the schedule: by hand, and against the compiler's own total."""

from collections.abc import Mapping

import pytest

from rooflight.compile.hlo.memory import read_live
from rooflight.compile.hlo.step import CompiledStep

ASSIGNMENT = """BufferAssignment:
allocation 0: size 100, parameter 0:
 value: <1 p @0> (size=100,offset=0): f32[25]
allocation 1: size 80, preallocated-temp:
 value: <2 a @0> (size=40,offset=0): f32[10]
 value: <3 b{0} @0> (size=40,offset=40): f32[10]
 value: <4 c (phi) @0> (size=20,offset=0): f32[5]
allocation 2: size 64, color 1:
 value: <5 fast @0> (size=64,offset=0): f32[16]
"""
RANGES = """HloLiveRange (max 4):
  InstructionSequence:
    0:p
    1:a
    2:b
    3:c
    4:fast
  BufferLiveRange:
    p{}:0-4
    a{}:1-2
    b{0}:2-3
    c{}:2-4
    fast{}:0-4
"""


def test_live_bytes_of_main_memory_are_those_of_the_places_taken() -> None:
    live = read_live(ASSIGNMENT, RANGES)
    assert live is not None
    # c shares the place of a, whose 40 bytes count as long as it lives; fast is elsewhere.
    assert live.nbytes == (100, 140, 180, 160, 120)
    assert live.names[live.peak_at] == "b"


def test_texts_that_do_not_say_give_nothing() -> None:
    assert read_live(ASSIGNMENT, "") is None
    assert read_live("", RANGES) is not None


@pytest.mark.parametrize("name", ["fsdp", "fsdp-v5p", "scan", "psum"])
def test_the_peak_is_the_compilers_total_or_little_less(
    steps: Mapping[str, CompiledStep], name: str
) -> None:
    step = steps[name]
    assert step.live is not None and step.memory is not None
    assert 0.95 * step.memory.total_bytes <= step.live.peak <= step.memory.total_bytes
