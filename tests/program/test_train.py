"""Training is the same under every layout that the planner names: losses and all gradients."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any  # JSON

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

from program_cases import EVERYDAY, MODELS, cases, covering, everyday, layouts, sets

from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.plan.training.search.options import schedules_of

HERE = Path(__file__).parent
GRADIENT = 1e-5  # of a tensor's largest element
LOSS = 1e-5


def run(worker: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / worker), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def check(model: str, devices: int, which: str) -> int:
    found = run("train_worker.py", model, str(devices), which)
    assert found["losses"][-1] != found["losses"][0]
    for case, worst in found["layouts"].items():
        assert worst["gradient"] <= GRADIENT, (case, worst)
        assert worst["loss"] <= LOSS, (case, worst)
    return len(found["layouts"])


@pytest.mark.parametrize("model", EVERYDAY)
def test_layouts_that_cover_schemes_train_as_one_device_does(model: str) -> None:
    assert check(model, EVERYDAY[model], "everyday") == len(everyday(model))


def test_every_day_each_scheme_trains_and_each_pair_in_one_of_the_models() -> None:
    for model in ("moe", "one_kv_head"):
        assert sets(everyday(model), 1) == sets(cases(model, EVERYDAY[model]), 1)
    together = [case for model in EVERYDAY for case in everyday(model)]
    assert sets(cases("dense", 8), 2) <= sets(together, 2)


@pytest.mark.full
@pytest.mark.parametrize(("model", "devices"), [("dense", 8), ("moe", 16), ("one_kv_head", 8)])
def test_layouts_that_cover_schemes_and_their_pairs_train_as_one_device_does(
    model: str, devices: int
) -> None:
    chosen = covering(list(cases(model, devices)), 2)
    assert check(model, devices, "2") == len(chosen)


@pytest.mark.parametrize("model", MODELS)
def test_no_layout_of_the_planner_is_left_out_on_sixteen_devices(model: str) -> None:
    named = [layout.text for layout in layouts(model)]
    assert [case.layout.text for case in cases(model, 16)] == named


@pytest.mark.full
@pytest.mark.parametrize("devices", [8, 16])
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_of_the_planner_trains_as_one_device_does(model: str, devices: int) -> None:
    assert check(model, devices, "all") == len(list(cases(model, devices)))


def test_the_largest_llama_is_lowered_for_4096_chips_without_making_anything() -> None:
    found = run(
        "lower_worker.py",
        *("llama3.1-405b", "dp=Z,fsdp=X,sp=Y", "Z=16,X=32,Y=8", "v5p:16x16x16", "2048", "8192"),
    )
    assert found["devices"] == 4096
    assert found["params"] > 405e9
    assert found["standard_s"] < 30
    assert found["peak_bytes"] < 1e9  # the weights of one chip alone are 3 GB
    assert found["device_bytes"] > 3e9
    assert found["scopes"] == found["ops"]


@pytest.mark.full
def test_the_largest_llama_is_lowered_in_sixteen_uneven_stages() -> None:
    found = run(
        "lower_worker.py",
        *("llama3.1-405b", "fsdp=X,sp=Y,pp=P", "P=16,X=32,Y=8", "v5p:16x16x16"),
        *("1024", "8192", "16"),
    )
    assert found["params"] > 405e9 * 128 / 126.1  # 126 layers and two of padding
    assert found["standard_s"] < 30
    assert found["peak_bytes"] < 1e9
    assert found["scopes"] == found["ops"]


@pytest.mark.parametrize("layout", ["dp=Z", pytest.param("dp=Z,pp=P", marks=pytest.mark.full)])
def test_gradients_of_matrices_and_of_vectors_are_summed_over_devices_once_a_step(
    layout: str,
) -> None:
    """The model has scales, biases and sinks; a microbatch itself sums numbers of the loss only."""
    found = run("accumulation_worker.py", "pattern", layout, "2", "4")
    runs = [[count for count, nbytes in sums if nbytes > 8] for sums in found.values()]
    assert runs[0] and runs[0] == runs[1] == [1] * len(runs[0])


SCHEDULES = ("1f1b,2,1", "interleaved,2,2")
MORE_SCHEDULES = ("gpipe,4,1", "zb-h1,4,1", "zb-v,2,2", "interleaved,2,4")


def check_schedules(layouts: str, *schedules: str) -> None:
    for case, worst in run("staged_train_worker.py", layouts, *schedules).items():
        assert worst["gradient"] <= GRADIENT, (case, worst)
        assert worst["loss"] <= LOSS, (case, worst)


def test_unlike_layers_in_uneven_stages_train_as_one_device_does() -> None:
    check_schedules("few", SCHEDULES[0])


@pytest.mark.full
def test_every_schedule_trains_as_one_device_does() -> None:
    check_schedules("all", *SCHEDULES, *MORE_SCHEDULES)


def test_no_schedule_of_the_search_is_left_out() -> None:
    run_here = {tuple(text.split(",")[::2]) for text in (*SCHEDULES, *MORE_SCHEDULES)}
    assert {
        (name, str(virtual)) for name, virtual in schedules_of(FRAMEWORKS["rooflight"])
    } <= run_here
