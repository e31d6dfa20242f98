"""Several models on a pool, and priorities of one: never dearer than apart, each SLO kept."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rooflight.api.serving import plan_serving
from rooflight.api.workloads import plan_workloads
from rooflight.cli.main import main
from rooflight.errors import UsageError
from rooflight.plan.serving.fleet.plan import Fleet

CHAT: dict[str, Any] = {
    "model": "llama3-8b",
    "dtypes": "fp8",
    "isl": "1024~0.5",
    "osl": 128,
    "ttft": "500ms",
    "tpot": "15ms",
}
SMALL: dict[str, Any] = {"model": "llama3.2-1b", "rate": 3, "isl": 512, "osl": 64, "ttft": "1s"}


def alone(workload: dict[str, Any], on: str, spare: int = 1) -> Fleet:
    own = {key: value for key, value in workload.items() if key != "model"}
    best = plan_serving(workload["model"], **own, on=on, spare=spare).best
    assert best
    return best


@pytest.mark.parametrize(
    ("on", "spare"), [*product(["h100", "v5e:1x1,v5e:2x2", "h100,v6e"], [0, 2])]
)
def test_a_pool_never_costs_more_than_its_fleets_apart(on: str, spare: int) -> None:
    two = [{**SMALL, "rate": 40}, {**SMALL, "model": "llama3.2-3b", "tpot": "20ms"}]
    pool = plan_workloads(two, on=on, spare=spare)
    apart = [alone(workload, on, spare) for workload in two]
    assert pool.apart_dollars == pytest.approx(sum(one.dollars_per_hour for one in apart))
    assert pool.dollars_per_hour <= sum(one.dollars_per_hour for one in apart)
    working = sum(f.replicas * f.way.setup.on.num_chips for f in pool.fleets)
    assert pool.num_chips - working == sum(
        max(
            spare * f.way.setup.on.num_chips
            for f in pool.fleets
            if f.way.setup.on.chip.name == chip
        )
        for chip in {f.way.setup.on.chip.name for f in pool.fleets}
    )


def test_a_pool_of_one_is_the_fleet_of_plan_serve() -> None:
    pool = plan_workloads([SMALL], on="v5e:1x1")
    assert pool.fleets == (alone(SMALL, "v5e:1x1"),)


def test_workloads_that_are_alike_are_one() -> None:
    """The same lengths, SLO and priority: simulated alike to the last digit."""
    whole = alone({**CHAT, "rate": 40}, "h100:1")
    (split,) = plan_workloads([{**CHAT, "rate": 30}, {**CHAT, "rate": 10}], on="h100:1").fleets
    assert (split.replicas, split.simulation) == (whole.replicas, whole.simulation)


def test_who_can_wait_costs_less_and_each_class_keeps_its_slo() -> None:
    busy = {**CHAT, "rate": 30}
    later = {**CHAT, "rate": 60, "ttft": "60s", "tpot": "100ms", "priority": 1}
    strict = alone({**CHAT, "rate": 90}, "h100:1")
    (mixed,) = plan_workloads([busy, later], on="h100:1").fleets
    assert mixed.replicas <= strict.replicas
    first, second = mixed.simulation.by_priority
    assert first.good_share >= 0.95 and second.good_share >= 0.95
    assert first.ttft and second.ttft and first.ttft.p95 <= second.ttft.p95
    assert (first.num_finished + first.num_rejected) / mixed.simulation.num_requests == (
        pytest.approx(1 / 3, abs=0.05)
    )
    (unlike,) = plan_workloads([busy, {**later, "tpot": "1ms"}], on="h100:1").fleets or (None,)
    assert unlike is None  # nobody keeps it, however well the other class is served


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"isl": None}, "model"),
        ({"rat": 3}, "has 'rat'"),
        ({"ttft": "9s"}, "priority 0 and different SLOs"),
        ({"dtypes": "int8"}, "differ in dtypes"),
        ({"rate": "none"}, "rate"),
        ({"priority": -1}, "priority"),
    ],
)
def test_a_wrong_workload_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as told:
        plan_workloads([SMALL, {**SMALL, **change}] if "isl" not in change else [{}], on="v5e:1x1")
    assert words in str(told.value)


@pytest.mark.parametrize("text", ["model =", "a = 1", "workload = 3", "[workload]\nmodel = 'x'"])
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "workloads.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"TOML|workload"):
        plan_workloads(path, on="v5e:1x1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dtypes", "fp8"], "--workloads and dtypes are both given"),
        (["llama3-8b"], "--workloads and model are both given"),
        (["--ttft", "1s"], "--workloads and ttft are both given"),
    ],
)
def test_a_flag_that_the_file_has_is_not_ignored(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "serve", *words, "--workloads", "docs/workloads.toml"]) == 2
    assert told in capsys.readouterr().err
    assert main(["plan", "serve", "llama3-8b", "--rate", "3"]) == 2
    assert "required: --isl, --osl" in capsys.readouterr().err
