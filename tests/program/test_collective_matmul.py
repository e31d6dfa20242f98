"""Collective matmuls against the plain product, and the steps around their rings (chapter 10)."""

from typing import Any  # JSON

import pytest

pytest.importorskip("jax")

from workers import report

WORKER = "collective_matmul_worker.py"
CLOSE = 2e-6  # of the largest entry, in fp32
EXERCISES = {  # of chapter 10; 10.4 is the both-ways half of each
    "worked example": "gather contract",
    "10.1": "all-reduce",
    "10.2": "scatter columns",
    "10.3": "block by model",
}
ONE_RING = ["gather rows", "gather contract", "scatter rows", "scatter columns", "all-reduce"]
TWO_RINGS = ["block by model", "block by tokens"]


def of(form: str, ring: int, *, two_way: bool) -> Any:
    found = [c for c in report(WORKER)["cases"] if c["form"] == form and c["ring"] == ring]
    return next(c for c in found if c["two_way"] == two_way)


def test_every_form_has_the_values_and_gradients_of_the_plain_product() -> None:
    wrong = [c for c in report(WORKER)["cases"] if not c["error"] < CLOSE]
    assert wrong == []
    assert {c["form"] for c in report(WORKER)["cases"]} == {*ONE_RING, *TWO_RINGS}
    assert {c["ring"] for c in report(WORKER)["cases"]} == {1, 2, 3, 8}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_exercises_of_the_book_hold_one_way_and_both_ways(exercise: str) -> None:
    form = EXERCISES[exercise]
    assert all(of(form, 8, two_way=way)["error"] < CLOSE for way in (False, True))


@pytest.mark.parametrize("form", ONE_RING)
def test_both_directions_halve_the_steps(form: str) -> None:
    """n - 1 steps one way, floor(n / 2) both ways."""
    assert of(form, 8, two_way=False)["steps"] == 7
    assert of(form, 8, two_way=True)["steps"] == 4
    assert of(form, 3, two_way=True)["steps"] == 1


@pytest.mark.parametrize("form", TWO_RINGS)
def test_a_fused_block_goes_around_twice(form: str) -> None:
    assert of(form, 8, two_way=False)["steps"] == 14
    assert of(form, 8, two_way=True)["steps"] == 8


def test_a_product_that_cannot_be_split_is_refused_with_a_way_out() -> None:
    assert "6 rows" in report(WORKER)["refused"]
    assert "pad the rows to a multiple of 4" in report(WORKER)["refused"]
