"""The loop: its parts are those of the step model, no roof is beaten, and load costs time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.hardware.calibration import calibration_constants
from rooflight.hardware.serving_calibration import FIRST_TOKEN_FOLDER, serving_constants
from rooflight.measure.published.replay import CaseSet
from rooflight.measure.published.serving_loop import ServingTable, serving_table
from rooflight.measure.published.serving_question import ServingQuestion, ask_serving
from rooflight.measure.published.serving_replay import parts_of, serving_case
from rooflight.measure.published.serving_rows import ServingRow
from rooflight.plan.serving.simulate.replay import replayed_model
from rooflight.plan.serving.step.calibrated import (
    GenerateParts,
    calibrated_generate_s,
    calibrated_prefill_s,
    first_prompt_s,
)

from .first_tokens import FirstTokenTable, first_token_cases


def _question(model: str, *, tp: int, ep: int, isl: int = 1024) -> ServingQuestion:
    fields = {
        "silicon_data_source": "x; silicon_concurrency=16",
        "backend": "sglang",
        "model_path": model,
        "system": "b200_sxm",
        "precision": "fp8",
        "mode": "agg",
        "isl": str(isl),
        "osl": "1000",
        "gemm_quant_mode": "fp8",
        "moe_quant_mode": "fp8",
        "batch_size": "16",
        "tp_size": str(tp),
        "moe_tp_size": str(tp // ep),
        "moe_ep_size": str(ep),
        "silicon_tpot_ms": "10",
        "silicon_ttft_ms": "10",
    }
    return ask_serving(ServingRow(fields))


_QUESTIONS = [
    _question("Llama-3.1-70B", tp=4, ep=1),
    _question("gpt-oss-120b", tp=2, ep=1, isl=8192),
    _question("DeepSeek-R1", tp=8, ep=8),
    replace(_question("DeepSeek-R1", tp=8, ep=8), tp=1, dp=8),
]


@pytest.mark.parametrize("question", _QUESTIONS, ids=lambda q: f"{q.model.name}-dp{q.dp}")
def test_parts_add_up_to_the_step_model(question: ServingQuestion) -> None:
    rows, context = 64, question.prompt + question.output // 2
    model = replayed_model(
        question.model,
        question.chip,
        tp=question.tp,
        dp_attention=question.dp,
        ep=question.ep,
        precision=question.precision,
    )
    step, parts = model.generate([context] * rows), parts_of(question)
    one = GenerateParts(*(column[0] for column in parts.step))
    touched = 1 - (1 - one.expert_share) ** rows
    assert one.weights_s + one.experts_s * touched == pytest.approx(step.weights_s)
    assert one.kv_s * rows == pytest.approx(step.kv_s)
    assert one.attention_s * rows == pytest.approx(step.attention_s)
    assert (one.matmul_s + one.expert_matmul_s) * rows == pytest.approx(step.matmul_s)
    assert one.activations_s * rows == pytest.approx(step.activations_s)


@given(st.data())
@settings(max_examples=40)
def test_no_constants_beat_the_roofs(data: st.DataObject) -> None:
    values = {
        c.name: data.draw(st.floats(c.low, c.high), label=c.name)
        for c in serving_constants().values()
    }
    table = serving_table([parts_of(q) for q in _QUESTIONS])
    # Interference at its least: the roof hides prompts as far as any value does.
    roof = dict(table.roof) | {"interference": values["interference"]}
    said, least = table.seconds(values), table.seconds(roof)
    assert np.all(said.total >= least.total * 0.97)  # slower prompts leave fewer that generate
    first = FirstTokenTable(table, said.total)
    slow = {
        c.name: data.draw(st.floats(c.low, c.high), label=c.name) for c in first.constants.values()
    }
    assert np.all(first.seconds(slow).total >= first.seconds(first.roof).total)
    assert np.all(first.seconds(first.roof).total > said.total)


def test_more_clients_slow_every_token_down() -> None:
    table = serving_table([_loaded(parts_of(_QUESTIONS[0]), batch=b) for b in (1, 4, 16, 64, 256)])
    times = table.seconds(_typical())
    assert np.all(np.diff(times.total) > 0)
    assert np.all(np.diff(times.rows) > 0)


def test_clients_beyond_the_memory_wait_for_their_first_token() -> None:
    parts = _loaded(parts_of(_QUESTIONS[0]), room=64.0)
    table = serving_table([_loaded(parts, batch=b) for b in (64.0, 128.0)])
    times = table.seconds(_typical())
    assert times.total[1] == pytest.approx(times.total[0])
    first_s = FirstTokenTable(table, times.total).seconds(_typical_first()).total
    assert first_s[1] == pytest.approx(first_s[0] + parts.loads.output[0] * times.total[0])


def test_workers_that_only_generate_have_no_prompts_in_their_way() -> None:
    parts = parts_of(_QUESTIONS[0])
    table = serving_table([parts, _loaded(parts, is_disaggregated=1.0)])
    together, apart = table.seconds(_typical()).total
    assert apart < together


def test_drafted_tokens_that_are_accepted_shorten_the_time_a_token() -> None:
    parts = _loaded(parts_of(_QUESTIONS[2]), batch=4.0, is_disaggregated=1.0)
    ahead = [parts.step._replace(drafted=np.array([float(d)])) for d in (0, 1, 3)]
    table = serving_table([replace(parts, step=step) for step in ahead])
    plain, one, three = table.seconds(_typical()).total
    assert three < one < plain


@pytest.mark.parametrize("question", _QUESTIONS, ids=lambda q: f"{q.model.name}-dp{q.dp}")
def test_the_planner_and_the_fit_price_a_step_alike(question: ServingQuestion) -> None:
    values = _typical()
    model = replayed_model(
        question.model,
        question.chip,
        tp=question.tp,
        dp_attention=question.dp,
        ep=question.ep,
        precision=question.precision,
    )
    alone = _loaded(parts_of(question), batch=32.0, is_disaggregated=1.0)
    context = question.prompt + question.output / 2
    step_s = calibrated_generate_s(model, values, rows=32, context=context)
    assert step_s == pytest.approx(float(serving_table([alone]).seconds(values).total[0]))
    assert step_s > model.generate([round(context)] * 32).lower_s
    prompt_s = calibrated_prefill_s(model, values, tokens=question.prompt)
    assert prompt_s > model.prefill([question.prompt]).flops_s


def test_wrong_values_of_a_calibrated_step_show_in_its_time() -> None:
    model = replayed_model(_QUESTIONS[0].model, "b200", tp=4, precision=_QUESTIONS[0].precision)
    values = _typical()
    slower = [
        calibrated_generate_s(model, values | {name: values[name] / 2}, rows=8, context=1024.0)
        for name in ("hbm", "kv", "network", "quantised")
    ]
    assert all(s > calibrated_generate_s(model, values, rows=8, context=1024.0) for s in slower)


def _loaded(parts: ServingTable, **changed: float) -> ServingTable:
    """The same engine under another load."""
    columns = {name: np.array([float(value)]) for name, value in changed.items()}
    return replace(parts, loads=parts.loads._replace(**columns))


def test_a_burst_of_clients_waits_for_each_others_prompts() -> None:
    table = serving_table([_loaded(parts_of(_QUESTIONS[0]), batch=b) for b in (1, 11, 21)])
    first = FirstTokenTable(table, np.full(3, 0.01))
    alone, some, more = first.seconds(_typical_first()).total
    own_s = float(first_prompt_s(table.prompt, _typical_first())[0])
    assert some - alone == pytest.approx(10 * 0.05 * own_s)
    assert more - some == pytest.approx(some - alone)


def test_first_tokens_are_not_asked_of_rows_that_cannot_say() -> None:
    parts = parts_of(_QUESTIONS[0])
    rows = [
        parts,
        replace(parts, first_s=np.zeros(1)),
        _loaded(parts, is_disaggregated=1.0),
        _loaded(parts, room=1.0),
    ]
    case = serving_case(_QUESTIONS[0])
    asked = CaseSet(tuple(replace(case, id=str(i)) for i in range(4)), (), serving_table(rows))
    found = first_token_cases(asked, np.full(4, 0.01))
    assert [c.id for c in found.cases] == ["0"] and found.cases[0].measured_s == 0.01


def _typical_first() -> dict[str, float]:
    return {c.name: c.typical for c in calibration_constants(FIRST_TOKEN_FOLDER).values()}


def _typical() -> dict[str, float]:
    """What to expect of an engine on a chip that nobody measured."""
    return {c.name: c.typical for c in serving_constants().values()}
