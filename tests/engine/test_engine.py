"""Jobs come, go and fail at random: nobody's text changes, no block is lost, nothing compiles."""

from typing import Any  # JSON

import pytest

pytest.importorskip("jax")

from engine_process import report

RUNNER, SCHEDULES = "engine_runner_worker.py", "engine_schedules_worker.py"


def check_schedules(found: Any, count: int) -> None:
    assert {"stop", "length", "cancelled"} <= set(found["ends"])
    assert sum(found["ends"].values()) > 3 * count
    assert found["distinct"] > 40
    assert found["preemptions"] > count / 4
    assert found["hits"] > count
    assert found["compilations"] == 0


def test_texts_do_not_depend_on_the_schedule() -> None:
    check_schedules(report(SCHEDULES, "25", "0", "0", "0"), 25)


def test_drafts_change_no_text_under_any_schedule() -> None:
    found = report(SCHEDULES, "15", "0", "3", "0")
    check_schedules(found, 15)
    assert 0 < found["accepted"] < found["drafted"]


def test_drafts_of_a_model_change_no_text_under_any_schedule() -> None:
    found = report(SCHEDULES, "25", "0", "3", "1")
    check_schedules(found, 25)
    assert found["drafted"] / 2 < found["accepted"] < found["drafted"]


@pytest.mark.parametrize("seeds", ["300", pytest.param("1000", marks=pytest.mark.full)])
def test_drafts_of_a_model_leave_the_chances_of_every_token_as_they_are(seeds: str) -> None:
    found = report("engine_chances_worker.py", seeds)
    assert found["same"] and 0 < found["accepted"] < found["drafted"]
    assert found["kinds"] > 8
    # Five standard deviations of a sum of squares of as many kinds.
    assert found["chi_square"] < found["kinds"] + 5 * (2 * found["kinds"]) ** 0.5


@pytest.mark.full
def test_texts_do_not_depend_on_any_of_500_schedules() -> None:
    check_schedules(report(SCHEDULES, "500", "1000", "0", "0"), 500)


def test_jobs_of_many_threads_get_their_texts_and_the_runner_drains() -> None:
    found = report(RUNNER)["plain"]
    assert found["same"] and found["drained"] and found["warm"]
    assert found["late"] == "queue full"
    assert found["running"] == 0
    assert found["steps"] > 20


def test_a_cancelled_job_gets_tokens_of_one_more_step_at_most() -> None:
    found = report(RUNNER)["cancelled"]
    assert found["finish"] == {"0": "length", "1": "cancelled", "2": "length"}
    assert found["steps_after"] <= 1


def test_a_step_that_raises_ends_those_in_it_and_nobody_else() -> None:
    found = report(RUNNER)["failing"]
    assert (found["failed"], found["done"]) == (4, 4)
    assert found["same"] and not found["dead"]
    assert found["error"] == "RuntimeError: the device is gone"
    assert found["blocks"] == 64


def test_an_engine_that_cannot_recover_says_so_and_ends_every_job() -> None:
    found = report(RUNNER)["dying"]
    assert found["finish"] == ["failed"] * 6
    assert found["dead"]
    assert found["late"] == "queue full"


def test_a_queue_is_bounded_and_a_text_that_never_fits_is_refused() -> None:
    found = report(RUNNER)["full"]
    assert found["answers"] == ["admitted"] * 3 + ["queue full"] * 3
    assert found["long"] == "too long"
    assert found["stopped"] == "queue full"  # nobody would ever answer
    assert found["finish"] == {str(i): "length" for i in range(3)}


def test_texts_in_eight_bits_do_not_depend_on_who_runs_beside_them() -> None:
    found = report(RUNNER)["few_bits"]
    assert found["same"]
    assert found["preemptions"] > 0
