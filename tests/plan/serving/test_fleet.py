"""The fleet search against brute force, its bounds against simulations, its calibrated cost."""

import math
import random
from dataclasses import replace
from functools import partial

import pytest

from rooflight.api.serving import plan_serving
from rooflight.errors import UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.serving_calibration import serving_constants
from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.cost import CalibratedCost, calibrated_cost, fleet_cost
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.disaggregate import disaggregate_or_not
from rooflight.plan.serving.fleet.evidence import novel_of, unseen_of
from rooflight.plan.serving.fleet.hours import hourly_fleets, saving
from rooflight.plan.serving.fleet.plan import (
    Fleet,
    Trials,
    cheapest_fleet,
    fewest_replicas,
)
from rooflight.plan.serving.fleet.way import Way, chip_slices, ways_to_serve
from rooflight.plan.serving.simulate.arrivals import Lengths
from rooflight.plan.serving.simulate.engine_sizes import AskedSizes
from rooflight.plan.serving.simulate.run import PoolSplit, simulate
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.calibrated import calibrated_generate_s, calibrated_prefill_s
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout

TINY = load_model("llama3.2-1b")
INT8 = parse_precision("int8")
PRICES = {"v5e": 1.2, "h100": 3.0}


def fixed(tokens: int) -> Lengths:
    return Lengths("fixed", float(tokens))


def demand(**changes: object) -> Demand:
    plain = Demand(40.0, fixed(256), fixed(32), Slo(0.2, 0.01), num_requests=400)
    return replace(plain, **changes)  # type: ignore[arg-type]


def ways(
    asked: Demand, *, on: str = "v5e:1x1,v5e:2x2,h100:1", engine: str | None = "any"
) -> list[Way]:
    slices = [parse_slice(word) for word in on.split(",")]
    found = ways_to_serve(TINY, slices, asked, precisions=[INT8], prices=PRICES, engine=engine)
    return list(found)


def random_demand(seed: int) -> Demand:
    """Small traffic that needs from one to a few replicas."""
    draw = random.Random(seed)
    return demand(
        rate=draw.choice([10.0, 150.0, 400.0]),
        input=Lengths("lognormal", draw.choice([128.0, 1024.0]), variation=0.5),
        output=fixed(draw.choice([8, 48])),
        slo=Slo(draw.choice([0.4, 1.0]), draw.choice([0.004, 0.02])),
        hit_rate=draw.choice([0.0, 0.5]),
        seed=seed,
        num_requests=None,
    )


def brute_force(found: list[Way], asked: Demand, *, most: int) -> float:
    """The doubted dollars of the first fleet, every number of replicas tried on every way."""
    trials, best = Trials(asked), math.inf
    taken = [way for way in found if not way.is_novel] or found
    for way in taken:
        first = 2 if way.policy == "disaggregated" else 1
        # a bound of nothing: every split of every number is tried
        free = replace(way, bound=replace(way.bound, prefill_s=0.0, generate_s=0.0, together_s=0.0))
        for count in range(first, most + 1):
            if count * way.dollars * way.doubt >= best:
                break
            if trials.fleet(free, count, 0):
                best = count * way.dollars * way.doubt
    return best


@pytest.mark.parametrize("seed", range(5, 10))
def test_the_search_finds_what_trying_everything_finds(seed: int) -> None:
    asked = random_demand(seed)
    found = ways(asked)
    search = cheapest_fleet(found, asked)
    tried = brute_force(found, asked, most=6)
    mine = search.best.doubted_dollars if search.best else math.inf
    most = search.best.replicas if search.best else 0
    assert most <= 6 and mine == pytest.approx(tried)


@pytest.mark.parametrize("seed", range(5, 10))
def test_a_fleet_keeps_its_promise_in_its_own_simulation(seed: int) -> None:
    asked = random_demand(seed)
    best = cheapest_fleet(ways(asked), asked, spare=1).best
    if best is None:
        return
    again = Trials(asked).fleet(best.way, best.replicas, 1)
    assert again and again.simulation == best.simulation
    assert best.simulation.good_share >= asked.share
    assert best.paid_replicas == best.replicas + 1 and best.paid > 1


@pytest.mark.parametrize("engine", ["any", None])
@pytest.mark.parametrize(
    ("isl", "osl", "hit_rate"), [(1024, 256, 0.0), (64, 256, 0.5), (2048, 8, 0.5)]
)
@pytest.mark.parametrize(("model", "on"), [("llama3.2-1b", "v5e:2x2"), ("gpt-oss-20b", "h100:2")])
def test_a_full_replica_takes_at_least_the_bound_and_not_much_more(
    model: str, on: str, isl: int, osl: int, hit_rate: float, engine: str | None
) -> None:
    """All requests at once: nothing is ever idle, and the batch is as full as it gets."""
    asked = Demand(
        1e5,
        Lengths("lognormal", float(isl), variation=0.5),
        fixed(osl),
        Slo(),
        hit_rate=hit_rate,
        num_requests=900,
    )
    found = ways_to_serve(
        load_model(model),
        [parse_slice(on)],
        asked,
        precisions=[parse_precision("fp8")],
        prices=PRICES,
        policies=["continuous"],
        engine=engine,
        sizes=AskedSizes(256, 2048),  # a batch that so few requests fill
    )
    assert found
    for way in found:
        made = simulate(asked.arrivals(1e5), cost=way.cost, limits=way.limits)
        spent_s = made.busy_share * made.duration_s / made.num_finished
        assert made.num_finished == 900
        assert 1 <= spent_s / way.bound.together_s < 1.65, str(way)


def test_the_physics_lies_below_every_bound() -> None:
    for way in ways(demand()):
        assert way.physics.together_s <= way.bound.together_s * (1 + 1e-9)


def test_a_large_fleet_is_simulated_as_a_part_with_no_less_to_do() -> None:
    asked = demand(rate=4000.0)
    (way, *_) = (w for w in ways(asked, on="v5e:1x1") if w.policy == "continuous")
    fleet = fewest_replicas(way, asked)
    assert fleet and fleet.replicas > 16 and fleet.simulation.replicas == 16
    assert fleet.simulated_rate / 16 == pytest.approx(4000 / fleet.replicas)


def test_more_cached_tokens_never_cost_more() -> None:
    def dollars(hit_rate: float) -> Fleet:
        best = cheapest_fleet(ways(demand(hit_rate=hit_rate)), demand(hit_rate=hit_rate)).best
        assert best
        return best

    cold, warm = dollars(0.0), dollars(0.75)
    assert warm.dollars_per_hour <= cold.dollars_per_hour
    floors = [fleet.simulation.floor for fleet in (cold, warm)]
    assert floors[1].ttft_s < floors[0].ttft_s and floors[1].tpot_s == floors[0].tpot_s
    first = warm.simulation.ttft
    assert first and floors[1].ttft_s < first.p50  # what is cached is not computed alone
    assert cold.dollars_per_million_cached is None
    cached = warm.dollars_per_million_cached
    assert cached is not None and cached < warm.dollars_per_million_in
    work, hour = warm.demand.work(), warm.demand.rate * 3600 / 1e6
    parts = (
        (work.prompt_tokens, warm.dollars_per_million_in),
        (work.input_tokens - work.prompt_tokens, cached),
        (work.output_tokens, warm.dollars_per_million_out),
    )
    total = sum(tokens * hour * dollars for tokens, dollars in parts)
    assert total == pytest.approx(warm.dollars_per_hour)


def test_an_impossible_promise_finds_no_fleet() -> None:
    asked = demand(slo=Slo(1e-5, 1e-6))
    assert cheapest_fleet(ways(asked), asked).best is None


def test_night_needs_fewer_replicas_than_day() -> None:
    asked = demand(rate=200.0)
    best = cheapest_fleet(ways(asked, on="v5e:1x1"), asked).best
    assert best
    hours = hourly_fleets(best, [20.0, 200.0])
    assert hours[0].fleet.replicas <= hours[1].fleet.replicas == best.replicas
    assert 0 <= saving(hours) < 0.5
    assert [hour.dollars for hour in hours] == [hour.fleet.dollars_per_hour for hour in hours]
    late = hourly_fleets(best, [20.0, 200.0], cold_start_s=600)
    assert [hour.fleet for hour in late] == [hour.fleet for hour in hours]
    assert saving(late) == pytest.approx(saving(hours) * 5 / 6)  # ten minutes of one hour


def test_the_calibrated_cost_is_that_of_the_calibration_at_its_lengths() -> None:
    values = _typical()
    for word in ("tp=2", "pp=2"):
        setup = Setup(TINY, parse_slice("h100:2"), parse_serving_layout(word), INT8)
        model = serving_model(TINY, setup.on, setup.layout, INT8)
        cost = calibrated_cost(model, values, input_tokens=512, context=600, max_rows=64)
        for rows in (2, 32):
            step_s = cost.seconds(
                decode_rows=rows, kv_tokens=600 * rows, prefill_tokens=0, prefill_kv_tokens=0
            )
            own_s = calibrated_generate_s(model, values, rows=rows, context=600)
            assert step_s == pytest.approx(own_s)
    prompt_s = cost.seconds(
        decode_rows=0, kv_tokens=0, prefill_tokens=1024, prefill_kv_tokens=1024 * 513
    )
    two = calibrated_prefill_s(model, values, tokens=512)
    assert two < prompt_s < 2 * two  # two microbatches of a pipeline, launched once
    late_s = cost.late_s(prefill_tokens=1024, prefill_kv_tokens=1024 * 513)
    assert prompt_s + late_s > calibrated_prefill_s(model, values, tokens=1024)


def test_without_an_engine_the_roofs_are_the_cost() -> None:
    setup = Setup(TINY, parse_slice("v5e:1x1"), parse_serving_layout("tp=1"), INT8)
    cost, roofs, known = fleet_cost(setup, input_tokens=256, context=256, engine=None)
    assert cost is roofs and known is None
    step = {"decode_rows": 8, "kv_tokens": 2048, "prefill_tokens": 0, "prefill_kv_tokens": 0}
    slower, _, known = fleet_cost(setup, input_tokens=256, context=256, engine="any")
    assert known and slower.seconds(**step) > roofs.seconds(**step)


def test_what_no_two_rows_had_is_unseen() -> None:
    def unseen(text: str, chip: str, blocks: str) -> tuple[str, ...]:
        return unseen_of(parse_serving_layout(text), load_chip(chip), blocks)

    assert unseen("tp=8", "h100", "dense") == unseen("dp=8,ep=8", "h100", "experts") == ()
    assert unseen("tp=4,pp=2", "h100", "experts") == ("pp=2",)
    assert unseen("tp=64,ws=2", "h100", "dense")[1:] == ("ws=2",)
    assert "measured)" in unseen("tp=64", "h100", "dense")[0]
    assert unseen("tp=8,kv=sequence", "h100", "dense") == ("kv=sequence",)
    assert unseen("tp=16,kv=batch", "v5e", "dense") == ()
    assert unseen("pp=9", "this-host", "dense") == ()  # nobody measured any


def test_schemes_are_measured_together_and_as_far_apart() -> None:
    """Each of them alone is no evidence for all at once, nor one node for several."""

    def unseen(text: str, chip: str) -> tuple[str, ...]:
        return unseen_of(parse_serving_layout(text), load_chip(chip), "experts")

    assert unseen("tp=2,dp=8,ep=16", "h100") == ("tp with dp with ep",)
    assert unseen("dp=16,ep=16", "h100") == unseen("tp=16", "h100") == ()
    assert unseen("dp=16", "gb200") == unseen("tp=1", "v6e") == ()


def test_what_nobody_does_is_named() -> None:
    def novel(text: str, chip: str) -> tuple[str, ...]:
        return novel_of(parse_serving_layout(text), load_chip(chip))

    assert novel("tp=4,pp=2", "h100") == novel("tp=4,pp=2", "v6e") == ("pp=2",)
    assert novel("tp=4,kv=batch", "b200") == ("kv=batch",)
    assert novel("tp=16,kv=batch", "v5e") == novel("tp=4,dp=2", "h100") == ()
    assert novel("dp=16", "h100") == ("dp across nodes",)
    assert novel("dp=16", "gb200") == novel("dp=16,ep=16", "h100") == novel("tp=16", "h100") == ()


def test_a_layout_that_nobody_measured_has_to_win_by_more() -> None:
    """The same way twice, once with evidence: a little cheaper is not enough, much is."""
    asked = demand(slo=Slo(1.0, 0.05))
    plain = ways(asked, on="h100:1")[0]
    assert plain.unseen == () and plain.doubt == 1.0
    for share, chosen in ((0.97, False), (0.5, True)):
        new = replace(plain, dollars=plain.dollars * share, unseen=("pp=2",))
        assert 1.05 < new.doubt < 2
        found = cheapest_fleet([plain, new], asked)
        assert found.best and (found.best.way is new) == chosen
        assert found.untried is (None if chosen else new)
    assert all(w.unseen == () for w in ways(asked, on="h100:1", engine=None))


def test_stages_are_the_answer_only_where_nothing_else_serves() -> None:
    """Nobody serves in stages: however cheap, they come after every way that somebody took."""
    asked = demand(slo=Slo(1.0, 0.05))
    plain = next(w for w in ways(asked, on="h100:2") if str(w.setup.layout) == "tp=2")
    stages = next(w for w in ways(asked, on="h100:2") if str(w.setup.layout) == "pp=2")
    assert stages.is_novel and not plain.is_novel
    cheap = replace(stages, dollars=plain.dollars / 10)
    found = cheapest_fleet([cheap, plain], asked)
    assert found.best and found.best.way is plain and found.untried is None
    alone = cheapest_fleet([cheap, replace(plain, cost=_slow(plain.cost))], asked)
    assert alone.best and alone.best.way is cheap


def _slow(cost: StepCost) -> CalibratedCost:
    assert isinstance(cost, CalibratedCost)
    return replace(cost, request_s=1e6)


def test_disaggregated_replicas_have_to_win_by_what_their_rows_are_off() -> None:
    asked = demand(slo=Slo(1.0, 0.05))
    both = {w.policy: w for w in ways(asked, on="h100:1")}
    apart = both["disaggregated"]
    assert both["continuous"].doubt == 1.0 and 1.2 < apart.doubt < 5
    new = replace(apart, unseen=("tp=64",))
    assert apart.doubt < new.doubt < apart.doubt * 1.4  # the two are independent
    assert ways(asked, on="h100:1", engine=None)[1].doubt == 1.0


def test_at_the_same_price_the_layout_that_was_measured_more_is_the_answer() -> None:
    """Four experts' GPUs: split by attention or by heads, where the rows have one of them."""
    asked = demand(slo=Slo(2.0, 0.1))
    model, on = load_model("gpt-oss-20b"), parse_slice("h100:4")
    every = ways_to_serve(
        model,
        [on],
        asked,
        precisions=[parse_precision("fp8")],
        prices=PRICES,
        policies=["continuous"],
        engine="any",
    )
    found = cheapest_fleet(every, asked).best
    assert found and found.replicas == 1
    most = max(every, key=lambda way: way.rows_alike)
    assert found.way is most and most.rows_alike > min(way.rows_alike for way in every)


def test_what_all_share_is_cached_from_the_first_request_on() -> None:
    asked = demand(input=fixed(4096), hit_rate=0.9, rate=20.0, num_requests=200)
    (way, *_) = ways(asked, on="h100:1")
    served = partial(simulate, cost=way.cost, limits=way.limits, replicas=4)
    cold = served(asked.arrivals(20.0))
    warm = served(asked.arrivals(20.0), warm=asked.warm)
    assert cold.cached_share < warm.cached_share == pytest.approx(0.875, abs=0.01)  # whole blocks
    assert cold.ttft and warm.ttft and warm.ttft.largest < cold.ttft.largest
    assert demand().warm is None


@pytest.mark.parametrize(
    ("slo", "output"), [(Slo(0.3, 0.012), 64), (Slo(0.12, 0.012), 64), (Slo(0.3, 0.004), 64)]
)
def test_what_is_late_says_which_kind_of_replica_is_missing(slo: Slo, output: int) -> None:
    """A split is found where one of all of them keeps the SLO, in fewer tries."""
    asked = demand(rate=150.0, input=fixed(2048), output=fixed(output), slo=slo)
    way = next(w for w in ways(asked, on="v5e:1x1") if w.policy == "disaggregated")
    prefill, generate = way.least
    tries = Trials(asked)
    found: list[bool] = []
    possible: list[bool] = []
    for count in range(prefill + generate, prefill + generate + 5):
        splits = [(n, count - n) for n in range(prefill, count - generate + 1)]
        found.append(tries.fleet(way, count, 0) is not None)
        possible.append(any(good_share(way, asked, split) >= asked.share for split in splits))
    assert found == possible
    assert True in found
    assert tries.count <= 2 * len(found)


@pytest.mark.parametrize("seed", range(4))
def test_what_smooth_traffic_overloads_is_not_simulated(seed: int) -> None:
    """The same fleet in fewer tries as without that bound."""
    asked = random_demand(seed)
    every = [way for on in ("v5e:2x2", "h100:2") for way in ways(asked, on=on)]
    found = cheapest_fleet(every, asked, spare=1)
    loose = cheapest_fleet([replace(w, smooth_rate=math.inf) for w in every], asked, spare=1)
    assert found.num_simulations <= loose.num_simulations
    assert (found.best and found.best.dollars_per_hour) == (
        loose.best and loose.best.dollars_per_hour
    )


def test_the_runner_up_is_another_replica_and_no_better() -> None:
    traffic = partial(plan_serving, rate=20, isl=1500, osl=300, ttft="1s", tpot="40ms")
    plan = traffic("llama3.1-70b", dtypes="fp8", on="h100", requests=300)
    best, second = plan.best, plan.runner_up()
    assert best and second and second.rank >= best.rank
    assert second.way.setup.on.chip == best.way.setup.on.chip
    assert (second.way.setup.on, second.way.setup.layout) != (
        best.way.setup.on,
        best.way.setup.layout,
    )


def good_share(way: Way, asked: Demand, split: tuple[int, int]) -> float:
    assert way.transfer
    return simulate(
        asked.arrivals(asked.rate),
        cost=way.cost,
        limits=way.limits,
        replicas=PoolSplit(*split, way.transfer),
        slo=way.held(asked),
    ).good_share


def test_percentiles_lie_as_close_to_all_as_asked() -> None:
    asked = demand(percentile=99.9, num_requests=None)
    found = cheapest_fleet(ways(asked, on="h100:1"), asked).best
    assert found and found.simulation.good_share >= 0.999
    assert all(0 < chance <= 1 for chance in found.chances.values())
    ttft = found.simulation.ttft
    assert (
        ttft and ttft.at(99.9) == ttft.largest >= ttft.at(99) == ttft.p99 >= ttft.at(50) == ttft.p50
    )


def test_a_step_holds_what_its_engine_has_unless_said() -> None:
    def sizes(chip: str, engine: str | None, **asked: int) -> tuple[int, int]:
        found = AskedSizes(**asked).on(load_chip(chip), engine)
        return found.max_rows, found.max_step_tokens

    assert sizes("h100", "vllm") == sizes("h100", "any") == sizes("b200", None) == (1024, 8192)
    assert sizes("a100", "vllm") == sizes("v5e", "any") == sizes("v5e", "sglang") == (256, 2048)
    assert sizes("b200", "sglang") == (2048, 16384) and sizes("h200", "sglang") == (2048, 8192)
    assert sizes("h100", "vllm", rows=64) == (64, 8192)
    assert sizes("h100", "vllm", step_tokens=512) == (512, 512)
    assert sizes("a100", "vllm", rows=4096) == (4096, 4096)


def test_a_fleet_is_sized_by_the_forecast_or_as_surely_as_asked() -> None:
    asked = demand()
    (way, *_) = ways(asked, on="h100:1")
    first, each = way.first_token, way.calibration
    assert first and each and first.spread > 0.1
    assert way.held(asked) == asked.slo
    sure = way.held(replace(asked, confidence=90.0))
    assert sure.ttft_s == pytest.approx(asked.slo.ttft_s / math.exp(first.spread))
    assert sure.tpot_s == pytest.approx(asked.slo.tpot_s / math.exp(each.spread))
    roofs = ways(asked, on="h100:1", engine=None)[0]
    assert roofs.held(replace(asked, confidence=90.0)) == asked.slo
    with pytest.raises(UsageError, match="confidence"):
        replace(asked, confidence=40.0)


def test_the_chance_of_an_slo_is_what_was_asked_for_where_it_just_holds() -> None:
    """At the forecast even, at the end of the 80 % interval nine of ten, more with more room."""
    (way, *_) = ways(demand(), on="h100:1")
    fleet = Trials(demand()).fleet(way, 4, 0)
    assert fleet and fleet.simulation.ttft and way.first_token
    p95 = fleet.simulation.ttft.p95
    for room, chance in ((1.0, 0.5), (math.exp(way.first_token.spread), 0.9)):
        at = replace(fleet, demand=replace(fleet.demand, slo=Slo(p95 * room, 1.0)))
        assert at.chances["TTFT"] == pytest.approx(chance)
    roomy = replace(fleet, demand=replace(fleet.demand, slo=Slo(p95 * 9, 1.0)))
    assert roomy.chances["TTFT"] > 0.9
    assert not replace(fleet, demand=replace(fleet.demand, slo=Slo())).chances


def test_first_tokens_wait_for_their_request_and_tokens_do_not() -> None:
    setup = Setup(TINY, parse_slice("h100:1"), parse_serving_layout("tp=1"), INT8)
    cost, _, known = fleet_cost(setup, input_tokens=512, context=600, engine="vllm")
    assert isinstance(cost, CalibratedCost) and cost.first_token and known
    chunk = {"prefill_tokens": 512, "prefill_kv_tokens": 512 * 513 // 2}
    assert cost.late_s(**chunk) == cost.request_s == cost.first_token.values["request"]
    model = serving_model(TINY, setup.on, setup.layout, INT8)
    own_s = calibrated_prefill_s(model, cost.first_token.values, tokens=512)
    alone_s = cost.seconds(decode_rows=0, kv_tokens=0, **chunk) + cost.late_s(**chunk)
    assert alone_s == pytest.approx(own_s)
    rows_s = cost.seconds(decode_rows=8, kv_tokens=4800, prefill_tokens=0, prefill_kv_tokens=0)
    both_s = cost.seconds(decode_rows=8, kv_tokens=4800, **chunk)
    added_s = known.values["interference"] * calibrated_prefill_s(model, known.values, tokens=512)
    assert both_s == pytest.approx(max(own_s - cost.request_s, rows_s + added_s))


def test_the_sizes_of_a_chip_begin_with_the_smallest_that_holds_the_model() -> None:
    big = load_model("llama3-70b")
    assert str(chip_slices(load_chip("v5e"), big, INT8)[0]) == "v5e:2x4"
    small = [str(s) for s in chip_slices(load_chip("v5e"), TINY, INT8)]
    assert small[:3] == ["v5e:1x1", "v5e:2x2", "v5e:2x4"]
    assert [str(s) for s in chip_slices(load_chip("h100"), TINY, INT8)][:3] == [
        "h100:1",
        "h100:2",
        "h100:4",
    ]


def test_the_flip_lies_where_both_policies_serve_alike() -> None:
    setup = Setup(TINY, parse_slice("v5e:2x2"), parse_serving_layout("tp=4"), INT8)
    asked = demand(input=fixed(2048), output=fixed(128), slo=Slo(1.0, 0.01))
    verdict = disaggregate_or_not(setup, asked, engine=None)
    assert verdict and verdict.together > 0 and verdict.disaggregated > 0
    flips = verdict.input_flip
    assert flips is not None
    before, after = (
        disaggregate_or_not(setup, replace(asked, input=Lengths("fixed", flips * f)), engine=None)
        for f in (0.97, 1.03)
    )
    assert before and after and before.is_faster != after.is_faster


def _typical() -> dict[str, float]:
    """What to expect of an engine on a chip that nobody measured."""
    return {c.name: c.typical for c in serving_constants().values()}


@pytest.mark.parametrize("seed", range(4))
def test_a_simulation_that_cannot_keep_the_promise_may_end_early(seed: int) -> None:
    asked = random_demand(seed)
    for way in ways(asked, on="v5e:1x1,h100:1")[:3]:
        slo, most = way.held(asked), (1 - asked.share) * asked.requests(asked.rate)
        run = partial(simulate, cost=way.cost, limits=way.limits, slo=slo)
        whole = run(asked.arrivals(asked.rate))
        ended = run(asked.arrivals(asked.rate), most_late=most)
        assert (ended.good_share >= asked.share) == (whole.good_share >= asked.share)
        assert whole.good_share < asked.share or ended == whole
        assert ended.num_requests <= whole.num_requests


def test_most_of_a_hopeless_simulation_is_left_out() -> None:
    asked = demand(rate=400.0, num_requests=4000)
    (way, *_) = [w for w in ways(asked, on="v5e:1x1") if w.policy == "continuous"]
    most = (1 - asked.share) * asked.requests(asked.rate)
    slo = way.held(asked)
    ended = simulate(
        asked.arrivals(asked.rate), cost=way.cost, limits=way.limits, slo=slo, most_late=most
    )
    assert ended.num_requests < asked.requests(asked.rate) / 2
