"""Trip counts, held to loops that are really run, and counts of what several callers share."""

import operator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rooflight.compile.hlo.loops import executions
from rooflight.compile.hlo.parse import parse_module

COMPARE = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "NE": operator.ne,
}


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def loop_text(
    start: str, limit: str, direction: str, step: str = "add(%i, %s), metadata={}", by: int = 1
) -> str:
    return f"""HloModule m

%plus (a: s32[]) -> s32[] {{
  %a = s32[] parameter(0)
  %one = s32[] constant({by})
  ROOT %b = s32[] add(%a, %one)
}}

%cond (c: (s32[], s32[])) -> pred[] {{
  %c = (s32[], s32[]) parameter(0)
  %x = s32[] get-tuple-element(%c), index=0
  %y = s32[] get-tuple-element(%c), index=1
  %n = s32[] constant({limit if _is_number(limit) else 0})
  ROOT %lt = pred[] compare({"%x, %n" if _is_number(limit) else limit}), direction={direction}
}}

%body (d: (s32[], s32[])) -> (s32[], s32[]) {{
  %d = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%d), index=0
  %j = s32[] get-tuple-element(%d), index=1
  %s = s32[] constant({by})
  %k = s32[] {step}
  %moved = s32[] copy(%k)
  ROOT %t = (s32[], s32[]) tuple(%moved, %j)
}}

ENTRY %main (p: s32[]) -> (s32[], s32[]) {{
  %p = s32[] parameter(0)
  %zero = s32[] constant({start if _is_number(start) else 0})
  %seven = s32[] constant(7)
  %u = (s32[], s32[]) tuple({"%zero" if _is_number(start) else start}, %seven)
  ROOT %w = (s32[], s32[]) while(%u), condition=%cond, body=%body
}}
"""


def trips(text: str) -> int | None:
    return executions(parse_module(text))["body"].count


@given(
    st.integers(-20, 20),
    st.integers(-20, 20),
    st.integers(-4, 4),
    st.sampled_from(list(COMPARE)),
)
def test_a_loop_goes_round_as_often_as_it_does_when_run(
    start: int, limit: int, by: int, direction: str
) -> None:
    value, rounds = start, 0
    while COMPARE[direction](value, limit) and rounds < 100:
        value, rounds = value + by, rounds + 1
    assume(rounds < 100)  # the others never end
    found = trips(loop_text(str(start), str(limit), direction, by=by))
    assert found == rounds or (found is None and rounds == 0)


def test_a_limit_that_the_loop_carries_unchanged_is_a_constant() -> None:
    assert trips(loop_text("0", "%x, %y", "LT")) == 7


def test_the_counter_may_stand_on_the_right() -> None:
    assert trips(loop_text("0", "%y, %x", "GT")) == 7


def test_a_step_may_be_fused() -> None:
    assert trips(loop_text("0", "6", "LT", "fusion(%i), kind=kLoop, calls=%plus", by=2)) == 3


@pytest.mark.parametrize(
    "text",
    [
        loop_text("%p", "6", "LT"),
        loop_text("0", "6", "LT", "multiply(%i, %s)"),
        loop_text("0", "6", "LT", "add(%i, %j)"),
        loop_text("0", "6", "EQ"),
    ],
)
def test_what_does_not_follow_from_constants_is_unknown(text: str) -> None:
    assert trips(text) is None


def test_a_known_count_is_believed() -> None:
    note = 'body=%body, backend_config={"known_trip_count":{"n":"12"}}'
    assert trips(loop_text("%p", "6", "LT").replace("body=%body", note)) == 12


def test_a_computation_runs_as_often_as_all_its_callers_together() -> None:
    text = """HloModule m

%f (a: s32[]) -> s32[] {
  ROOT %a = s32[] parameter(0)
}

%g (b: s32[]) -> s32[] {
  %b = s32[] parameter(0)
  ROOT %c = s32[] call(%b), to_apply=%f
}

ENTRY %main (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %q = s32[] call(%p), to_apply=%g
  %r = s32[] call(%q), to_apply=%g
  ROOT %s = s32[] call(%r), to_apply=%f
}
"""
    found = executions(parse_module(text))
    assert {name: run.count for name, run in found.items()} == {"main": 1, "g": 2, "f": 3}
