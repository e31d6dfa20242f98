"""Uneven experts: against placements tried one by one, tokens drawn one by one, and even ones."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random

import pytest

from rooflight.api.replica import read_experts, read_setup
from rooflight.api.serving import plan_serving
from rooflight.errors import UsageError
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.simulate.setup import Features, Setup
from rooflight.plan.serving.step.curve import step_curve
from rooflight.plan.serving.step.experts import ExpertLoads, eplb, in_order, visits
from rooflight.plan.serving.step.layout import parse_serving_layout
from rooflight.plan.serving.step.model import StepModel
from rooflight.plan.serving.step.terms import CommTerm

QWEN = load_model("qwen3-30b-a3b")
DEEPSEEK = load_model("deepseek-v3")


def setup_of(loads: ExpertLoads | None, layout: str = "dp=8,ep=8") -> Setup:
    plain = read_setup("qwen3-30b-a3b", on="h100:8", layout=layout, dtypes="fp8")
    return replace(plain, features=Features(experts=loads))


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("skew", [0.0, 0.4, 1.0, 3.0])
def test_a_token_visits_k_experts_none_of_them_twice(skew: float, k: int) -> None:
    weights = [r**-skew for r in range(1, 33)]
    found = visits(weights, k)
    assert sum(found) == pytest.approx(k) and max(found) <= 1
    free = [(p, w) for p, w in zip(found, weights, strict=True) if p < 1]
    assert all(p / w == pytest.approx(free[0][0] / free[0][1]) for p, w in free)


def _placements(chances: Sequence[float], ranks: int, redundant: int) -> Iterator[float]:
    """The largest load of every way to replicate and to place, tried one by one."""
    each = (len(chances) + redundant) // ranks

    def fill(slots: list[float], loads: list[float], held: list[int]) -> Iterator[float]:
        if not slots:
            yield max(loads)
            return
        for rank in range(ranks):
            if held[rank] < each:
                loads[rank], held[rank] = loads[rank] + slots[0], held[rank] + 1
                yield from fill(slots[1:], loads, held)
                loads[rank], held[rank] = loads[rank] - slots[0], held[rank] - 1
                if not held[rank]:
                    break  # empty ranks are alike

    for more in combinations_with_replacement(range(len(chances)), redundant):
        copies = [1 + more.count(i) for i in range(len(chances))]
        yield from fill(
            [c / n for c, n in zip(chances, copies, strict=True) for _ in range(n)],
            [0.0] * ranks,
            [0] * ranks,
        )


def test_the_greedy_balancer_is_near_the_best_of_all_placements() -> None:
    draw, ratios = Random(3), list[float]()
    for experts, ranks, redundant in ((4, 2, 0), (4, 2, 2), (6, 3, 0), (5, 3, 1), (4, 3, 2)) * 6:
        chances = [draw.random() ** 3 for _ in range(experts)]
        placed = eplb(chances, ranks, redundant)
        assert {len(rank) for rank in placed} == {(experts + redundant) // ranks}
        assert sum(map(sum, placed)) == pytest.approx(sum(chances))
        best = min(_placements(chances, ranks, redundant))
        ratios.append(max(map(sum, placed)) / best)
    assert min(ratios) >= 1 - 1e-9 and max(ratios) < 4 / 3
    assert sum(r < 1 + 1e-9 for r in ratios) > len(ratios) / 2


def _token(draw: Random, chances: Sequence[float]) -> list[int]:
    """Distinct experts, each with its chance: equal steps through the chances in random order."""
    order = list(range(len(chances)))
    draw.shuffle(order)
    at, passed, found = draw.random(), 0.0, list[int]()
    for expert in order:
        passed += chances[expert]
        if at < passed:
            found.append(expert)
            at += 1
    return found


@pytest.mark.parametrize(("skew", "redundant"), [(0.6, None), (0.6, 32), (1.2, 0)])
def test_tokens_drawn_one_by_one_load_ranks_and_read_experts_as_said(
    skew: float, redundant: int | None
) -> None:
    loads, layout = ExpertLoads(skew, redundant=redundant), parse_serving_layout("dp=8,ep=8")
    balance = loads.balance(QWEN, layout)
    draw, (placed,) = Random(1), balance.chances
    owner = [rank for rank, held in enumerate(placed) for _ in held]
    chances = [chance for held in placed for chance in held]
    count, met = 6000, [0] * 8
    for _ in range(count):
        for slot in _token(draw, chances):
            met[owner[slot]] += 1
    assert max(met) * 8 / sum(met) == pytest.approx(balance.busiest, rel=0.03)
    for tokens in (1, 8, 64):
        times, read = 3000 // tokens, [0] * 8
        for _ in range(times):
            for slot in {slot for _ in range(tokens) for slot in _token(draw, chances)}:
                read[owner[slot]] += 1
        assert max(read) / times / 16 == pytest.approx(balance.touched(tokens), rel=0.06)


def test_the_luck_of_small_batches_is_left_to_calibrations() -> None:
    """Of even experts the busiest rank of 32 tokens has a quarter more; rows had that, too."""
    loads = ExpertLoads(0.0, redundant=0)
    balance = loads.balance(QWEN, parse_serving_layout("dp=8,ep=8"))
    draw, (placed,) = Random(5), balance.chances
    chances, worst = [c for held in placed for c in held], 0.0
    for _ in range(300):
        met = [0] * 8
        for _ in range(32):
            for slot in _token(draw, chances):
                met[slot // 16] += 1
        worst += max(met) * 8 / sum(met) / 300
    assert worst > 1.15 and balance.busiest == pytest.approx(1)


@pytest.mark.parametrize(
    "layout", ["dp=8,ep=8", "tp=8", "tp=8,ep=8", "tp=4,pp=2", "tp=2,dp=4,ep=8"]
)
def test_even_experts_have_the_times_they_had(layout: str) -> None:
    assert read_experts(QWEN, None, None) is None and read_experts(QWEN, "0", None) is None
    plain, even = setup_of(None, layout), setup_of(ExpertLoads(1e-12), layout)
    for engine in (None, "any"):
        costs = [
            fleet_cost(s, input_tokens=900, context=1000, engine=engine)[0] for s in (plain, even)
        ]
        for rows, chunk in ((1, 0), (30, 0), (200, 0), (0, 700), (50, 500)):
            sizes = {"decode_rows": rows, "kv_tokens": rows * 1000}
            tokens = {"prefill_tokens": chunk, "prefill_kv_tokens": chunk * 400}
            one, other = (cost.seconds(**sizes, **tokens) for cost in costs)
            assert one == pytest.approx(other, rel=1e-6)


def _terms(model: StepModel) -> dict[tuple[str, bool], float]:
    (stage,) = model.stages[frozenset(("generate",))]
    return {
        (c.term.op, isinstance(c.term, CommTerm)): c.term.unit_s
        if isinstance(c.term, CommTerm)
        else c.term.flops_s
        for c in stage
    }


def test_the_busiest_rank_stretches_its_matmuls_and_what_is_sent_to_it_alone() -> None:
    loads = ExpertLoads(0.8)
    busiest = loads.balance(QWEN, parse_serving_layout("dp=8,ep=8")).busiest
    assert busiest > 1.2
    plain, skewed = (_terms(setup_of(x).steps()) for x in (None, loads))
    for (op, is_sent), seconds in plain.items():
        expected = busiest if op.startswith("experts.") else 1.0
        assert skewed[op, is_sent] == pytest.approx(seconds * expected), op
    spread = _terms(setup_of(loads, "tp=8").steps())  # every chip has a part of each expert
    assert spread == _terms(setup_of(None, "tp=8").steps())


@pytest.mark.parametrize("loads", [ExpertLoads(0.7), ExpertLoads(0.7, redundant=16)])
def test_a_curve_has_the_times_of_its_model(loads: ExpertLoads) -> None:
    model = setup_of(loads).steps()
    curve = step_curve(model)
    for rows in (1, 8, 64, 512):
        said = curve.seconds(
            decode_rows=rows, kv_tokens=rows * 2000, prefill_tokens=0, prefill_kv_tokens=0
        )
        assert said == pytest.approx(model.generate([2000] * rows).expected_s)


def test_redundant_experts_cost_memory_and_take_load_off_the_busiest() -> None:
    skewed, moved, more = (ExpertLoads(0.9, redundant=n) for n in (None, 0, 64))
    held = [setup_of(x).memory().held(1, 1).weights_bytes for x in (skewed, moved, more)]
    each = 3 * QWEN.d_model * 768  # gate, in and out of one expert, a byte each
    assert held[0] == held[1] and held[2] - held[1] == 64 // 8 * each * QWEN.num_layers
    by = [x.balance(QWEN, parse_serving_layout("dp=8,ep=8")).busiest for x in (skewed, moved, more)]
    assert by[0] > by[1] > by[2] >= 1
    costs = [
        fleet_cost(setup_of(x), input_tokens=900, context=1000, engine="any")[0]
        for x in (None, skewed, more)
    ]
    even_s, skewed_s, more_s = (
        c.seconds(decode_rows=1000, kv_tokens=10**6, prefill_tokens=0, prefill_kv_tokens=0)
        for c in costs
    )
    assert even_s < more_s < skewed_s


def test_favourites_of_few_tokens_are_read_once() -> None:
    """Where every chip has a part of each expert, skew is a gain: fewer of them are read."""
    times: list[float] = []
    for skew in (0.1, 0.6, 1.5):
        model = setup_of(ExpertLoads(skew), "tp=8").steps()
        times.append(model.generate([100] * 32).weights_s)
    assert times == sorted(times, reverse=True) and times[-1] < 0.7 * times[0]


def test_counts_are_read_as_engines_write_them(tmp_path: Path) -> None:
    counts = [[1000 // (1 + (7 * e + layer) % 128) for e in range(128)] for layer in range(48)]
    dense = [0] * 128
    lines, column, recorded = (tmp_path / n for n in ("loads.csv", "one.txt", "recorded.json"))
    lines.write_text("\n".join(",".join(map(str, row)) for row in counts))
    column.write_text("\n".join(map(str, counts[0])))
    recorded.write_text(json.dumps({"logical_count": [dense, *counts]}))
    by_line, by_column, by_json = (read_experts(QWEN, str(p), 0) for p in (lines, column, recorded))
    assert by_line == by_json and by_line and len(by_line.counts) == 48
    assert by_column and by_column.counts == (tuple(map(float, counts[0])),)
    assert 0.9 < by_line.skew < 1.3
    layout = parse_serving_layout("dp=8,ep=8")
    alone = replace(by_column, redundant=None).balance(QWEN, layout)
    ranks = in_order(visits(counts[0], 8), 8)
    assert alone.busiest == pytest.approx(max(map(sum, ranks)))
    assert by_column.balance(QWEN, layout).busiest < alone.busiest
    steps = [
        [[n // 2 for n in row] for row in counts],
        [[n - n // 2 for n in row] for row in counts],
    ]
    recorded.write_text(json.dumps({"logical_count": steps}))
    assert read_experts(QWEN, str(recorded), 0) == by_line
    wrong = (("1,2,3", "must count tokens of the 128 experts"), ("a,b", "no counts"))
    for text, words in (*wrong, ("[]", "must count"), ('{"logical_count": []}', "must count")):
        lines.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_experts(QWEN, str(lines), None)


@pytest.mark.parametrize(
    ("layout", "skew", "redundant", "words"),
    [
        (None, "nowhere.csv", None, "cannot read nowhere.csv"),
        (None, "9", None, "from 0 to 4, got 9"),
        ("tp=8", "0.5", "8", "every chip has a part of each expert"),
        ("dp=8,ep=8", "0.5", "3", "not dealt out evenly to 8 ranks"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    layout: str | None, skew: str, redundant: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        plan_serving(
            "qwen3-30b-a3b",
            rate=1,
            isl=9,
            osl=9,
            on="h100:8",
            layout=layout,
            expert_skew=skew,
            redundant_experts=redundant,
        )
    with pytest.raises(UsageError, match="which has no experts"):
        read_experts(load_model("llama3-8b"), 0.5, None)


def test_a_search_leaves_out_layouts_that_the_replicas_do_not_suit() -> None:
    plan = plan_serving(
        "qwen3-30b-a3b",
        rate=20,
        isl=512,
        osl=64,
        tpot="50ms",
        on="h100:2,h100:4",
        dtypes="fp8",
        requests=200,
        expert_skew=0.8,
        redundant_experts=2,
    )
    ways = [w.setup for w in plan.question.ways(plan.question.slices["h100"], plan.question.demand)]
    assert {w.layout.ep for w in ways} == {1, 2} and plan.best
    assert any(w.told[-1].startswith("expert loads of skew 0.8, EPLB with 2") for w in ways)
