"""Inference functions on one device and on eight: every way to a token gives the same logits."""

from typing import Any  # JSON

import pytest

pytest.importorskip("jax")

from workers import report

CLOSE = 2e-5  # of logits near 5, in fp32
FEW, REST = ("pattern", "latent"), ("dense", "moe", "learned")
# Of logits, in their standard deviations: about three times what was measured.
ROUNDING = {
    "int8 weights": 0.07,
    "fp8 weights": 0.3,
    "int4 weights": 1.0,
    "int8 cache": 0.02,
    "fp8 cache": 0.1,
}


def on_one_device(model: str) -> Any:
    return report("generate_worker.py", *FEW)[model]


def check_layouts(found: Any) -> None:
    """Logits of a prompt and of each next token are those of the whole sequence at once."""
    assert found["size"] > 1
    assert found["alone"] <= CLOSE
    for layout, worst in found["layouts"].items():
        assert worst["error"] <= CLOSE, layout


@pytest.mark.parametrize("model", FEW)
def test_a_paged_cache_on_eight_devices_gives_the_logits_of_no_cache(model: str) -> None:
    found = report("generate_layout_worker.py", "few", *FEW)[model]
    check_layouts(found)
    assert len(found["layouts"]) == 2


@pytest.mark.full
@pytest.mark.parametrize("model", [*FEW, *REST])
def test_a_paged_cache_under_all_layouts_gives_the_logits_of_no_cache(model: str) -> None:
    found = report("generate_layout_worker.py", "all", *FEW, *REST)[model]
    check_layouts(found)
    assert len(found["layouts"]) >= 9


def test_a_cache_is_split_over_heads_and_over_rows_and_over_positions() -> None:
    found = report("generate_layout_worker.py", "few", *FEW)
    grouped, latent = (found[m]["layouts"]["dp=Z,tp=Y"]["cache"] for m in FEW)
    assert grouped == {"kv": "float32[2,64@Z,4,8@Y,8]"}
    assert latent == {"latent": "float32[2,64@Z,4,16]", "k_rope": "float32[2,64@Z,4,4]"}
    grouped, latent = (found[m]["layouts"]["dp=Z,tp=Y,ws=X"]["cache"] for m in FEW)
    assert grouped == {"kv": "float32[2,64@(Z,X),4,8@Y,8]"}
    assert latent == {"latent": "float32[2,64@(Z,X),4,16]", "k_rope": "float32[2,64@(Z,X),4,4]"}


@pytest.mark.parametrize("model", FEW)
def test_a_prompt_in_chunks_has_the_logits_of_a_prompt_at_once(model: str) -> None:
    assert on_one_device(model)["chunked"] <= CLOSE


@pytest.mark.parametrize("model", FEW)
def test_a_row_draws_the_same_token_wherever_it_sits_in_the_batch(model: str) -> None:
    assert on_one_device(model)["same_elsewhere"]


@pytest.mark.parametrize("what", ROUNDING)
def test_few_bits_move_logits_by_no_more_than_their_bound(what: str) -> None:
    error = on_one_device("pattern")["rounding"]["errors"][what]
    assert ROUNDING[what] / 10 < error <= ROUNDING[what]


def test_a_cache_in_eight_bits_weighs_a_quarter_and_its_scales() -> None:
    ratios = on_one_device("pattern")["rounding"]["bytes"]
    assert ratios == {"int8": 0.25 + 1 / 8, "fp8": 0.25 + 1 / 8}  # heads of 8, a scale each


@pytest.mark.parametrize("model", FEW)
def test_a_step_writes_its_cache_in_place(model: str) -> None:
    """64 times the blocks, and not a byte more beside them."""
    (small, _), (large, cache_bytes) = on_one_device(model)["bytes"]
    assert small == large < cache_bytes


def test_on_a_tpu_a_step_takes_the_paged_kernel_for_what_it_can() -> None:
    found = report("generate_tpu_worker.py")
    kernels = {name: steps["kernels"] for name, steps in found.items()}
    takes = dict.fromkeys(("grouped", "windowed", "one kv head a device"), 1)
    assert kernels == takes | dict.fromkeys(("sinks", "latent"), 0)


def test_on_a_tpu_a_step_writes_its_cache_in_place() -> None:
    for name, step in report("generate_tpu_worker.py").items():
        assert step["temporary"] < step["cache"] / 10, name
