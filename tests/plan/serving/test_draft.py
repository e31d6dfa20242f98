"""Draft tokens: against the step model, against rounds drawn one by one, and what they cost."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pytest

from rooflight.api.replica import read_draft, read_setup
from rooflight.api.serving import plan_serving
from rooflight.errors import UsageError
from rooflight.hardware.serving_calibration import load_serving_calibration
from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.cost import calibrated_cost, fleet_cost
from rooflight.plan.serving.fleet.frontier import curves
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.run import simulate
from rooflight.plan.serving.simulate.setup import Features
from rooflight.plan.serving.step.calibrated import calibrated_generate_s
from rooflight.plan.serving.step.curve import step_curve
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.draft import Draft, DraftedCost, accepted_share, drafter_on
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout
from rooflight.plan.serving.step.model import StepModel

CASES = (
    ("llama3.1-70b", "h100:4", "tp=4", "llama3.2-1b"),
    ("llama3.1-8b", "v5e:2x2", "tp=4", None),
    ("deepseek-v3", "h200:8", "dp=8,ep=8", None),
    ("gpt-oss-120b", "b200:2", "tp=2", None),
)
DTYPES = parse_precision("fp8")
Case = tuple[str, str, str, str | None]


@lru_cache
def model_of(case: Case) -> StepModel:
    name, on, layout, _ = case
    return serving_model(load_model(name), parse_slice(on), parse_serving_layout(layout), DTYPES)


def draft_of(case: Case, tokens: int, acceptance: float = 0.7) -> Draft:
    return Draft(tokens, acceptance, load_model(case[3]) if case[3] else None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("rows", "context", "ahead"), [(1, 4000, 1), (40, 900, 3), (300, 2000, 5)])
def test_a_checking_step_has_the_time_of_its_model(
    case: Case, rows: int, context: int, ahead: int
) -> None:
    """Drafts are checked at the same place; the curve gives each the positions of the last."""
    model = model_of(case)
    said = step_curve(model, queries=1 + ahead).seconds(
        decode_rows=rows, kv_tokens=rows * context, prefill_tokens=0, prefill_kv_tokens=0
    )
    assert said == pytest.approx(
        model.generate([context] * rows, queries=1 + ahead).expected_s, rel=0.01
    )


@dataclass
class Served:
    """What a client saw."""

    ttft_s: list[float]
    tpot_s: list[float]


def rounds_drawn_one_by_one(
    cost: DraftedCost, outputs: Sequence[int], *, clients: int, isl: int, budget: int
) -> Served:
    """A closed loop whose every step is a whole round, and whose every acceptance is drawn."""
    draw, found, now = random.Random(1), Served([], []), 0.0
    draft = cost.draft
    waiting = deque((0.0, isl) for _ in range(clients))  # sent, tokens of the prompt to compute
    running: list[list[float]] = []  # tokens to make, tokens made, first token
    lengths = iter(outputs)
    left = len(outputs) - clients
    while waiting or running:
        rows, room, attended = len(running), budget - len(running), 0
        began: list[float] = []
        while waiting and room:
            sent, tokens = waiting.popleft()
            chunk = min(tokens, room)
            room -= chunk
            end = isl - tokens + chunk
            attended += chunk * end - chunk * (chunk - 1) // 2
            if chunk < tokens:
                waiting.appendleft((sent, tokens - chunk))
            else:
                began.append(sent)
        chunk = budget - rows - room
        seen = int(sum(isl + made for _, made, _ in running)) + rows
        sizes = {"decode_rows": rows, "kv_tokens": seen}
        chunked = {"prefill_tokens": chunk, "prefill_kv_tokens": attended}
        none = {"prefill_tokens": 0, "prefill_kv_tokens": 0}
        now += cost.check.seconds(**sizes, **chunked)
        if rows:
            one_s = cost.check.seconds(**sizes, **none) / cost.num_layers
            if cost.propose:
                one_s = cost.propose.seconds(**sizes, **none)
            now += draft.tokens * one_s
        for row in running:
            accepted = 0
            while accepted < draft.tokens and draw.random() < draft.acceptance:
                accepted += 1
            row[1] += 1 + accepted
        for sent in began:
            found.ttft_s.append(now - sent)
            running.append([next(lengths), 1, now])
        for row in [row for row in running if row[1] >= row[0]]:
            running.remove(row)
            found.tpot_s.append((now - row[2]) / (row[0] - 1))
            if left:
                left -= 1
                waiting.append((now, isl))
    return found


@pytest.mark.parametrize("case", CASES[:3])
@pytest.mark.parametrize(("clients", "ahead"), [(1, 3), (24, 1), (24, 4)])
def test_rounds_spread_over_their_tokens_serve_as_rounds_do(
    case: Case, clients: int, ahead: int
) -> None:
    isl, osl, draw = 512, 200, random.Random(2)
    outputs = [draw.randint(100, 300) for _ in range(16 * clients + 20)]
    setup = replace(
        read_setup(case[0], on=case[1], layout=case[2], dtypes="fp8", rows=64, step_tokens=2048),
        features=Features(draft_of(case, ahead)),
    )
    cost, _, _ = fleet_cost(setup, input_tokens=isl, context=isl + osl // 2, engine=None)
    assert isinstance(cost, DraftedCost)
    drawn = rounds_drawn_one_by_one(cost, outputs, clients=clients, isl=isl, budget=2048)
    said = simulate(
        [Arrival(0.0, isl, tokens) for tokens in outputs],
        cost=cost,
        limits=setup.limits(),
        concurrency=clients,
    )
    assert said.tpot and said.ttft
    measured_s = sum(drawn.tpot_s) / len(drawn.tpot_s)
    assert said.tpot.mean == pytest.approx(measured_s, rel=0.05)
    late_s = said.tpot.mean * setup.draft.per_round if setup.draft else 0.0  # at most a round
    waited_s = sum(drawn.ttft_s) / len(drawn.ttft_s)
    assert said.ttft.mean == pytest.approx(waited_s, rel=0.05, abs=late_s)


@pytest.mark.parametrize("case", CASES)
def test_a_calibrated_token_is_that_of_the_rows_with_draft_tokens(case: Case) -> None:
    """At the mean length, the cost of a simulation is the formula that rows were fitted with."""
    model, on = model_of(case), parse_slice(case[1])
    known = load_serving_calibration(on.chip.name, on.chip.kind, "any", "experts")
    assert known
    drafter = drafter_on(draft_of(case, 3, 0.65), on, DTYPES)
    cost = calibrated_cost(
        model, known.values, input_tokens=900, context=1000, max_rows=64, drafter=drafter
    )
    for rows in (8, 64):
        said = cost.seconds(
            decode_rows=rows, kv_tokens=rows * 1000, prefill_tokens=0, prefill_kv_tokens=0
        )
        formula = calibrated_generate_s(
            model, known.values, rows=rows, context=1000.0, drafter=drafter
        )
        assert said == pytest.approx(formula, rel=0.02)


def test_the_layer_or_the_model_that_proposes_is_held_beside_the_weights() -> None:
    plain = read_setup("llama3.1-70b", on="h100:4", dtypes="fp8")
    held = plain.memory().held(8, 2000)
    layer = replace(plain, features=Features(Draft(3))).memory().held(8, 2000)
    assert layer.weights_bytes / held.weights_bytes == pytest.approx(81 / 80, rel=2e-3)
    assert layer.kv_bytes * 80 == held.kv_bytes * 81
    small = load_model("llama3.2-1b")
    other = replace(plain, features=Features(Draft(3, model=small))).memory().held(8, 2000)
    alone = read_setup("llama3.2-1b", on="h100:4", dtypes="fp8").memory().held(8, 2000)
    assert other.weights_bytes == held.weights_bytes + alone.weights_bytes
    assert other.kv_bytes == held.kv_bytes + alone.kv_bytes


def test_draft_tokens_pay_while_weights_bind_and_cost_while_matmuls_do() -> None:
    model, on = load_model("llama3.1-70b"), parse_slice("h100:8")
    curve = partial(
        curves,
        model,
        [on],
        layouts=[parse_serving_layout("tp=8")],
        precisions=[DTYPES],
        contexts=[300],
        engine="any",
    )
    plain, ahead = (curve(features=Features(draft))[0].points for draft in (None, Draft(3, 0.6)))
    assert ahead[0].step_s < plain[0].step_s / 1.5
    by_batch = {point.batch: point.step_s for point in plain}
    slowed = [p.batch for p in ahead if p.batch in by_batch and p.step_s > by_batch[p.batch]]
    assert slowed and min(slowed) >= 64


@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_the_tokens_per_step_that_engines_report_are_an_acceptance(ahead: int) -> None:
    for share in (0.2, 0.65, 0.9):
        draft = Draft(ahead, share)
        assert accepted_share(draft.per_round, ahead) == pytest.approx(share, abs=1e-9)
    with pytest.raises(UsageError, match="up to"):
        accepted_share(ahead + 1.0, ahead)


def test_more_acceptance_never_costs_more() -> None:
    dollars: list[float] = []
    for share in (0.3, 0.6, 0.9):
        plan = plan_serving(
            "llama3.1-70b",
            rate=6,
            isl=1024,
            osl=256,
            tpot="25ms",
            on="h100",
            dtypes="fp8",
            draft_tokens=3,
            acceptance=share,
        )
        assert plan.best
        dollars.append(plan.best.dollars_per_hour)
    assert dollars == sorted(dollars, reverse=True) and dollars[-1] < dollars[0]


def test_draft_tokens_that_cannot_be_are_refused_in_words() -> None:
    target = load_model("llama3.1-70b")
    assert read_draft(target, 0, None, None) is None
    with pytest.raises(UsageError, match="without draft tokens"):
        read_draft(target, None, 0.7, None)
    with pytest.raises(UsageError, match="vocabulary of llama3"):
        read_draft(target, 3, None, "qwen3-8b")
    plain = read_setup("llama3.1-70b", on="h100:4", layout="tp=2,pp=2")
    staged = replace(plain, features=Features(Draft(3)))
    with pytest.raises(UsageError, match="2 stages"):
        staged.limits()
    with pytest.raises(UsageError, match="2 stages"):
        plan_serving("llama3.1-70b", rate=1, isl=9, osl=9, layout="tp=2,pp=2", draft_tokens=3)
    with pytest.raises(UsageError, match="2 stages"):
        asked = partial(curves, precisions=[DTYPES], contexts=[99], layouts=[staged.layout])
        asked(target, [staged.on], features=Features(Draft(3)))
    assert str(Draft(1, 0.7)).startswith("1 draft token, ")
