"""What the docs claim of speed, as ratios of things that ran in turn on one machine."""

import pytest

from .conftest import Measured


def test_starts_within_five_times_a_bare_interpreter() -> None:
    found = Measured("start_up", "--quick")
    for word in ("--help", "chips"):
        assert 1 < found[f"rooflight {word} / bare interpreter"] <= 5


@pytest.mark.full
def test_a_step_through_the_api_takes_no_longer_than_the_same_maths_by_hand() -> None:
    found = Measured("train_step")
    assert found["through the API / by hand"] <= 1.02
    assert (
        found.record["machine"]["flops_per_s"] > found.record["machine"]["memory_bytes_per_s"] > 0
    )


@pytest.mark.full
def test_a_generate_step_takes_no_longer_than_the_same_maths_by_hand() -> None:
    assert Measured("generate_step")["through the API / by hand"] <= 1.02


@pytest.mark.full
def test_the_loop_and_its_saves_cost_little() -> None:
    found = Measured("train_overhead")
    assert found["trainer's loop / tight loop"] < 1.02
    assert found["with checkpoints / trainer's loop"] < 1.05


@pytest.mark.full
def test_a_step_is_planned_beside_what_it_takes() -> None:
    found = Measured("decode_steps", "--quick")
    assert list(found.rows) == ["batch 1", "batch 4"]
    steps = [row["more"] | {"measured_s": row["value"]} for row in found.rows.values()]
    for step in steps:
        assert 0 < step["matmuls_planned_s"] <= step["planned_s"] < step["measured_s"]
        assert 0 < step["matmuls_s"] < step["measured_s"]
    assert steps[0]["planned_s"] < steps[1]["planned_s"]


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_an_engine_is_as_fast_as_a_bare_loop_and_faster_than_xla_alone(batch: int) -> None:
    found = Measured("engine")
    assert found[f"batch {batch}: engine / bare loop"] >= 0.95
    assert found[f"batch {batch}: engine / XLA alone"] >= 1
    assert found[f"batch {batch}: engine / transformers"] >= 1


@pytest.mark.full
def test_ten_million_requests_keep_their_pace_and_their_memory() -> None:
    found = Measured("simulator")
    assert found["last tenth / second tenth of the requests"] <= 1.3
    assert found["memory that the last nine tenths added"] < 50e6


@pytest.mark.full
def test_a_slider_over_a_pod_waits_for_little_but_its_answer() -> None:
    pytest.importorskip("playwright")
    assert Measured("slider")["a move / its answer alone"] <= 3


@pytest.mark.full
def test_a_verdict_takes_the_compilers_time_and_little_of_ours() -> None:
    found = Measured("verify", "--quick")
    whole, ours = (row["value"] for row in found.rows.values())
    assert 0 < ours < 0.2 * whole
