"""Causes are measured one by one; what they do not add up to is left unattributed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rooflight.measure.reconcile.gap import Compiled, Gap, Planned, Timed, Traced, explain_gap

_S = st.floats(0.0, 10.0)


def _planned(matmuls: float, sent: float, bubble: float) -> Planned:
    return Planned(max(matmuls, sent) + bubble, matmuls, sent, bubble)


_PLANNED = st.builds(_planned, _S, _S, _S)
_COMPILED = st.builds(Compiled, *[st.none() | _S] * 3)
_TRACED = st.builds(Traced, _S, _S, _S, _S, st.dictionaries(st.sampled_from("abc"), _S), _S, _S, _S)
_TIMED = st.builds(Timed, _S, _S)


@given(_PLANNED, _COMPILED, _TRACED, _TIMED)
def test_what_is_left_is_what_no_witness_saw(
    planned: Planned, compiled: Compiled, traced: Traced, timed: Timed
) -> None:
    gap = explain_gap(planned, compiled, traced, timed)
    # Between trace and log, and idle time with nothing recorded: nobody measured either.
    left = timed.profiled_s - traced.step_s + traced.unknown_s
    assert abs(gap.unattributed_s - left) < 1e-9
    total = gap.planned_s + sum(c.seconds for c in gap.causes) + gap.unattributed_s
    assert abs(total - gap.measured_s) < 1e-9


@given(_PLANNED, _COMPILED, _TRACED, _TIMED, _S)
def test_a_longer_step_that_nobody_explains_stays_unattributed(
    planned: Planned, compiled: Compiled, traced: Traced, timed: Timed, more: float
) -> None:
    before = explain_gap(planned, compiled, traced, timed)
    slower = replace(timed, step_s=timed.step_s + more, profiled_s=timed.profiled_s + more)
    after = explain_gap(planned, compiled, traced, slower)
    assert abs(after.unattributed_s - before.unattributed_s - more) < 1e-9
    assert _named(after, "trace") == _named(before, "trace")


def test_each_cause_moves_with_its_own_measurement_only() -> None:
    planned, compiled = Planned(1.0, 1.0, 0.5, 0.0), Compiled(1.2, 0.1, 0.6)
    traced = Traced(1.5, 0.3, 0.3, 0.05, {"rows": 0.02}, 0.01, 0.3, 0.1)
    timed = Timed(2.2, 2.28)
    gap = explain_gap(planned, compiled, traced, timed)
    found = {cause.name: round(cause.seconds, 9) for cause in gap.causes}
    assert found == {
        "matmuls beyond the plan": 0.2,
        "speed of matmuls": 0.3,
        "passes over memory, which plans leave out": 0.1,
        "speed of passes": 0.2,
        "collectives beyond the plan": 0.1,
        "waiting for the last device": 0.1,
        "speed of links": -0.1,
        "less hidden than planned": 0.2,
        "loops and calls, between ops": 0.05,
        "idle: rows": 0.02,
        "the profiler itself": -0.08,
    }
    later = explain_gap(planned, compiled, replace(traced, waits_s=0.2), timed)
    before, after = ({c.name: c.seconds for c in one.causes} for one in (gap, later))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"waiting for the last device", "speed of links"}


def _named(gap: Gap, witness: str) -> list[tuple[str, float]]:
    return [(c.name, c.seconds) for c in gap.causes if c.witness == witness]
