"""What no layout may do: beat the chain of its own stages, or slow down on a faster chip."""

from dataclasses import replace
from functools import lru_cache, partial
from itertools import product

import numpy as np
import pytest

from rooflight.errors import RooflightError
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Chip
from rooflight.hardware.serving_calibration import load_first_token, shipped_serving
from rooflight.hardware.slice import Slice
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import Moe
from rooflight.plan.serving.fleet.cost import CalibratedCost, calibrated_cost, calibration_of
from rooflight.plan.serving.simulate.replay import slice_name
from rooflight.plan.serving.step.calibrated import (
    calibrated_generate_s,
    calibrated_prefill_s,
    generate_parts,
    generate_s,
    prompt_parts,
    prompt_s,
)
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.curve import step_curve
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import ServingLayout, parse_precision
from rooflight.plan.serving.step.model import StepModel

MODELS = ("llama3.1-8b", "llama3.1-70b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3")
CHIPS = ("h100", "h200", "b200", "gb200", "v5e", "v6e", "tpu7x")
CONTEXT = 2048
PROMPT = 1024


@lru_cache(maxsize=256)
def steps(model: str, chip: str, layout: ServingLayout) -> StepModel:
    on = slice_name(chip, layout.num_chips).partition(":")[2]
    shape = tuple(int(n) for n in on.split("x"))
    return on_chip(model, load_chip(chip), shape, layout)


def on_chip(model: str, chip: Chip, shape: tuple[int, ...], layout: ServingLayout) -> StepModel:
    precision = parse_precision("int8" if chip.kind == "tpu" else "fp8")
    return serving_model(load_model(model), Slice(chip, shape), layout, precision)


def step_s(cost: StepCost, rows: int) -> float:
    return cost.seconds(
        decode_rows=rows, kv_tokens=rows * CONTEXT, prefill_tokens=0, prefill_kv_tokens=0
    )


def first_s(cost: StepCost) -> float:
    """A prompt alone."""
    pairs = PROMPT * (PROMPT + 1) // 2
    chunk = {"prefill_tokens": PROMPT, "prefill_kv_tokens": pairs}
    return cost.seconds(decode_rows=0, kv_tokens=0, **chunk) + cost.late_s(**chunk)


def costs(model: StepModel) -> list[StepCost]:
    """By the roofs, and under every calibration of the chip."""
    found: list[StepCost] = [step_curve(model)]
    chip = model.mesh.slice.chip
    for engine in ("any", *sorted({e for c, e, _ in shipped_serving() if c == chip.name})):
        known = calibration_of(model.model, chip, engine)
        if known:
            first = calibration_of(model.model, chip, engine, load_first_token)
            found += [priced(model, known), priced(model, known, first)]
    return found


def priced(
    model: StepModel, known: Calibration, first: Calibration | None = None
) -> CalibratedCost:
    return calibrated_cost(
        model, known.values, input_tokens=PROMPT, context=CONTEXT, max_rows=64, first=first
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chip", CHIPS)
def test_stages_never_make_one_sequence_faster(name: str, chip: str) -> None:
    """At batch 1 only one stage works at a time: PP=n is PP=1 with hand-overs."""
    for tp in (1, 2):
        alone = costs(steps(name, chip, ServingLayout(tp=tp)))
        for pp in (2, 4):
            staged = costs(steps(name, chip, ServingLayout(tp=tp, pp=pp)))
            assert len(staged) == len(alone) > 1
            for one, other in zip(staged, alone, strict=True):
                assert step_s(one, 1) >= step_s(other, 1)
                assert first_s(one) >= first_s(other) * (1 - 1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chip", ["h100", "b200", "v6e"])
def test_a_chain_of_stages_is_never_faster_than_their_sum(name: str, chip: str) -> None:
    model = steps(name, chip, ServingLayout(tp=2, pp=4))
    known = calibration_of(model.model, model.mesh.slice.chip, "any")
    assert known
    parts, prompt = generate_parts(model, CONTEXT), prompt_parts(model, PROMPT)
    for rows in (1, 3, 4, 5, 64):
        each = np.full(4, float(-(-rows // 4)))
        chain_s = float(generate_s(parts, known.values, each).sum())
        said_s = calibrated_generate_s(model, known.values, rows=rows, context=CONTEXT)
        assert said_s >= chain_s > 0
    chain_s = float(prompt_s(prompt, known.values).sum())
    assert first_s(priced(model, known)) >= chain_s * (1 - 1e-9)
    assert calibrated_prefill_s(model, known.values, tokens=PROMPT) == pytest.approx(chain_s)


def test_more_sequences_never_shorten_a_step_of_stages() -> None:
    for cost in costs(steps("gpt-oss-120b", "b200", ServingLayout(pp=4))):
        times = [step_s(cost, rows) for rows in range(1, 33)]
        assert times == sorted(times)
        assert times[0] == times[3] < times[4]  # four microbatches, then two sequences in one


def faster(chip: Chip, part: str) -> Chip:
    if part == "flops":
        return replace(chip, flops={name: 1.5 * rate for name, rate in chip.flops.items()})
    if part == "hbm":
        assert chip.hbm_bytes_per_s
        return replace(chip, hbm_bytes_per_s=1.5 * chip.hbm_bytes_per_s)
    if chip.torus:
        return replace(
            chip, torus=replace(chip.torus, link_bytes_per_s=1.5 * chip.torus.link_bytes_per_s)
        )
    assert chip.switched
    own = chip.switched
    egress, nic = own.chip_egress_bytes_per_s, own.nic_bytes_per_s
    links = replace(own, chip_egress_bytes_per_s=1.5 * egress, nic_bytes_per_s=1.5 * nic)
    return replace(chip, switched=links)


def layouts_of(model: str, own: Chip) -> list[tuple[ServingLayout, tuple[int, ...]]]:
    """Of eight chips, those that the model can be split by."""
    shape = (2, 4) if own.torus else (8,)
    layouts = [ServingLayout(tp=8), ServingLayout(tp=4, pp=2), ServingLayout(tp=2, pp=4)]
    if any(isinstance(b.mlp, Moe) for b in load_model(model).blocks):
        layouts += [ServingLayout(tp=8, ep=8), ServingLayout(dp=8, ep=8)]
    return [(layout, shape) for layout in layouts if can_be(model, own, shape, layout)]


def can_be(model: str, chip: Chip, shape: tuple[int, ...], layout: ServingLayout) -> bool:
    try:
        on_chip(model, chip, shape, layout)
    except RooflightError:
        return False
    return True


def check_faster(name: str, chip: str, part: str) -> int:
    """How many layouts were asked."""
    own = load_chip(chip)
    better, layouts = faster(own, part), layouts_of(name, own)
    for layout, shape in layouts:
        slow, fast = (costs(on_chip(name, c, shape, layout)) for c in (own, better))
        for one, other in zip(slow, fast, strict=True):
            for rows in (1, 8, 64):
                assert step_s(other, rows) <= step_s(one, rows) * (1 + 1e-9), (name, layout)
    return len(layouts)


@pytest.mark.parametrize("part", ["flops", "hbm", "links"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chip", ["h200", "gb200", "v6e"])
def test_a_faster_chip_slows_no_layout(name: str, chip: str, part: str) -> None:
    assert check_faster(name, chip, part) >= 3


@pytest.mark.full
@pytest.mark.parametrize("chip", ["h100", "gb200", "v6e"])
def test_physics_hold_for_every_preset(chip: str) -> None:
    """A faster chip slows nothing, and stages neither beat one stage nor the sum of their own."""
    asked = sum(
        check_faster(name, chip, part)
        for name in model_names()
        for part in ("flops", "hbm", "links")
    )
    staged = 0
    for name, tp, pp in product(model_names(), (1, 2), (2, 4)):
        shapes = [((1, n) if load_chip(chip).torus else (n,)) for n in (tp, tp * pp)]
        layouts = [ServingLayout(tp=tp), ServingLayout(tp=tp, pp=pp)]
        if not all(map(partial(can_be, name, load_chip(chip)), shapes, layouts)):
            continue
        alone, stages = (
            costs(on_chip(name, load_chip(chip), shape, layout))
            for shape, layout in zip(shapes, layouts, strict=True)
        )
        for one, other in zip(stages, alone, strict=True):
            assert step_s(one, 1) >= step_s(other, 1) * (1 - 1e-9), (name, tp, pp)
            assert first_s(one) >= first_s(other) * (1 - 1e-9), (name, tp, pp)
        staged += 1
    assert asked > 100 and staged > 40
