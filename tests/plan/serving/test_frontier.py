"""The frontier against every point it was chosen from."""

from functools import partial

import pytest

from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.bound import candidate_layouts
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.fleet.frontier import Curve, Point, curves, frontier
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout

MODEL = load_model("llama3-70b")


def found(context: int = 8192) -> tuple[Curve, ...]:
    slices = [parse_slice("v5e:4x4"), parse_slice("v5e:2x4")]
    return curves(MODEL, slices, precisions=[parse_precision("int8")], contexts=[context])


def beats(a: Point, b: Point) -> bool:
    return a.step_s <= b.step_s and a.tokens_per_s_per_chip > b.tokens_per_s_per_chip


def test_nothing_beats_a_point_of_the_frontier_and_something_every_other() -> None:
    every = found()
    best = frontier(every, context=8192)
    points = [p for c in every for p in c.points]
    assert not any(beats(p, b) for p in points for b in best)
    assert all(p in best or any(beats(b, p) or b.step_s <= p.step_s for b in best) for p in points)
    assert [p.step_s for p in best] == sorted(p.step_s for p in best)


def test_a_point_is_what_the_step_model_says() -> None:
    point = frontier(found(), context=8192)[3]
    config = point.config
    step = serving_model(MODEL, config.on, config.layout, config.precision).generate(
        [8192] * point.batch
    )
    assert point.step_s == step.expected_s
    dollars = point.dollars_per_million(1.2)
    assert dollars == pytest.approx(1.2 / 3600 * 16 * step.expected_s / point.batch * 1e6)


def test_under_an_engine_the_expected_step_is_that_of_its_calibration() -> None:
    """The same as a fleet is planned with, at every batch and with stages; bounds stay bounds."""
    on, precision = parse_slice("h100:8"), parse_precision("fp8")
    for text in ("tp=8", "tp=4,pp=2"):
        layout = parse_serving_layout(text)
        ask = partial(
            curves, MODEL, [on], precisions=[precision], contexts=[4096], layouts=[layout], most=64
        )
        (calibrated,), (roofs,) = ask(engine="vllm"), ask()
        assert calibrated.calibration and calibrated.calibration.engine == "vllm"
        assert roofs.calibration is None and calibrated.first_token_s > roofs.first_token_s
        setup = Setup(MODEL, on, layout, precision)
        cost, _, _ = fleet_cost(setup, input_tokens=1024, context=4096, engine="vllm")
        for one, bare in zip(calibrated.points, roofs.points, strict=True):
            rows = one.batch
            step_s = cost.seconds(
                decode_rows=rows, kv_tokens=4096 * rows, prefill_tokens=0, prefill_kv_tokens=0
            )
            assert one.step_s == pytest.approx(step_s, rel=0.1)  # one sums what the other smooths
            assert one.step_s > bare.step.lower_s
        (lower,) = ask(engine="vllm", bound="lower")
        assert [p.step_s for p in lower.points] == [p.step.lower_s for p in roofs.points]


def test_regions_cover_every_batch_of_a_curve() -> None:
    for curve in found():
        ends = [(low, high) for _, low, high in curve.regions]
        assert ends[0][0] == 1 and ends[-1][1] == curve.points[-1].batch


def test_every_candidate_uses_all_chips_once() -> None:
    for name, chips in (("llama3-70b", 16), ("deepseek-v3", 32), ("mixtral-8x7b", 8)):
        layouts = candidate_layouts(load_model(name), chips)
        assert len(set(layouts)) == len(layouts)
        assert {layout.num_chips for layout in layouts} == {chips}


def test_a_slice_too_large_for_one_replica_is_refused() -> None:
    with pytest.raises(UsageError, match="as one replica"):
        candidate_layouts(load_model("llama3.1-405b"), 8960)


def test_a_context_that_fits_nowhere_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="not one sequence"):
        frontier(found(10**7), context=10**7)
