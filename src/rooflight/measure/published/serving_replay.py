"""Serving rows replayed: each one asked, its parts listed, its time per token measured; or refused.

In: `ServingRow`s. Out: `CaseSet`, as training rows become: what fits, holds out and reports them
does not know the one from the other.

A question's parts: what one generated token and one prompt cost each part of the hardware. They are
sums over the terms of the step model; nothing is worked out anew. Everything but the experts that
are read is linear in the sequences of a step.

Serving rows of a file of measured runs, as rows of the serving CSV are. Rows taken from the CSV are
put back into its columns; those of TPUs name their own chips, sizes and lengths.

Serving rows of any file, answered by the shipped calibrations; errors of held-out rows. The CSV
does not ship, so the errors of its held-out rows do, by group: `serving_accuracy.json`, by
`tests/reconcile/serving_accuracy.py`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError, UsageError
from rooflight.hardware.calibration import DENSE, EXPERTS, measured_chips
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.serving_calibration import load_serving_calibration
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.replay import Case, CaseSet, RefusedRow, Watch
from rooflight.measure.published.rows import FOLDER, Fields, PublishedFile, PublishedRun
from rooflight.measure.published.serving_loop import Loads, ServingTable, serving_table
from rooflight.measure.published.serving_question import ServingQuestion, ask_serving
from rooflight.measure.published.serving_rows import ServingRow, read_serving_rows
from rooflight.measure.published.validation import Accuracy, Validation, validate_rows
from rooflight.plan.serving.simulate.replay import replayed_model
from rooflight.plan.serving.step.calibrated import GenerateParts, generate_parts, prompt_parts
from rooflight.plan.serving.step.layout import Precision
from rooflight.plan.serving.step.model import StepModel

_SILICON = "aic-silicon"
_MODELS = {
    "deepseek3-671b": "DeepSeek-R1",
    "llama3.1-70b": "Llama-3.1-70B",
    "qwen3-32b": "Qwen3-32B",
}
_WEIGHTS = {"": "", "fp4": "nvfp4"}

_HBM_SHARE = 0.95  # of the memory for weights and caches; activations and the runtime take the rest

ACCURACY_FILE = FOLDER / "serving_accuracy.json"
MEASURED = PER_TOKEN, FIRST_TOKEN = "per token", "to the first token"

KIND = "serve"


def ask_silicon(path: Path, *, watch: Watch | None = None) -> CaseSet:
    """Asks every row of a CSV for the time a token takes."""
    return _ask(read_serving_rows(path), ask_serving, watch)


def ask_served(rows: PublishedFile, *, watch: Watch | None = None) -> CaseSet:
    """The same for the rows of kind serve of a file of measured runs."""
    return _ask(rows.of((KIND,)), lambda row: ask_published(row, rows.models), watch)


class _Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def source(self) -> str: ...


_Any = TypeVar("_Any", bound=_Named)


def _ask(
    rows: Sequence[_Any], ask: Callable[[_Any], ServingQuestion], watch: Watch | None
) -> CaseSet:
    cases: list[Case] = []
    parts: list[ServingTable] = []
    refusals: list[RefusedRow] = []
    for number, row in enumerate(rows, start=1):
        try:
            question = ask(row)
            parts.append(parts_of(question))
            cases.append(serving_case(question))
        except RooflightError as error:
            refusals.append(RefusedRow(row.id, row.source, str(error)))
        if watch:
            watch(number, len(rows))
    return CaseSet(tuple(cases), tuple(refusals), serving_table(parts))


def serving_case(question: ServingQuestion) -> Case:
    """Who ran a row where: the group it is calibrated and reported in."""
    row = question.row
    return Case(
        row.id,
        KIND,
        row.source,
        row.model,
        "disaggregated" if row.is_disaggregated else "together",
        question.chip,
        load_chip(question.chip).kind,
        row.engine,
        EXPERTS if question.is_moe else DENSE,
        row.configuration,
        row.tpot_s,
        question.assumed,
        question.tp * question.dp,
        degrees={"tp": question.tp, "dp": question.dp, "ep": question.ep},
        reach=frozenset((question.kv,)),
    )


def validate_silicon(path: Path, *, watch: Watch | None = None) -> Validation:
    """Answers every row of a CSV of measured serving; nothing is fitted."""
    return validate_rows(ask_silicon(path, watch=watch), load_serving_calibration)


def validate_served(rows: PublishedFile, *, watch: Watch | None = None) -> Validation:
    """The same for the serve rows of a file of measured runs."""
    return validate_rows(ask_served(rows, watch=watch), load_serving_calibration)


@dataclass(frozen=True, slots=True)
class Directions:
    """Pairs of settings that differ in one thing, more than 3 % apart: how many are in order."""

    group: str
    differ: str  # clients, or how one replica is split
    pairs: int
    right: int
    wrong_by: float  # how many times the slower takes, in the middle one of the wrong pairs


def shipped_serving_accuracy() -> dict[str, tuple[Accuracy, ...]]:
    """The held-out errors of the rows that calibrations were fitted to, by what was measured."""
    document = json.loads(ACCURACY_FILE.read_text(encoding="utf-8"))
    return {what: tuple(Accuracy(**one) for one in document[what]) for what in MEASURED}


def shipped_directions() -> dict[str, tuple[Directions, ...]]:
    """Which of two settings is faster, by the same held-out predictions."""
    document = json.loads(ACCURACY_FILE.read_text(encoding="utf-8"))["directions"]
    return {what: tuple(Directions(**one) for one in document[what]) for what in MEASURED}


def parts_of(question: ServingQuestion) -> ServingTable:
    """Derives the row's step model and adds its terms up."""
    model = replayed_model(
        question.model,
        question.chip,
        tp=question.tp,
        dp_attention=question.dp,
        ep=question.ep,
        precision=question.precision,
        kv=question.kv,
    )
    context = question.prompt + question.output / 2
    step = generate_parts(model, context, drafted=question.drafted)
    new = max(1, round(question.prompt * (1 - question.cached)))
    prompt = prompt_parts(model, question.prompt, cached=question.prompt - new)
    load = (
        _room(question, model, step),
        question.batch,
        question.output,
        question.row.is_disaggregated,
    )
    return ServingTable(
        step._replace(
            kernels=step.kernels + question.kernels, is_eager=np.array([float(question.eager)])
        ),
        prompt._replace(kernels=prompt.kernels + question.kernels),
        Loads(*(np.array([float(value)]) for value in load)),
        np.array([question.row.ttft_s]),
    )


def _room(question: ServingQuestion, model: StepModel, step: GenerateParts) -> float:
    """Sequences whose caches fit beside the weights, by what the step model reads of each."""
    chip = model.mesh.slice.chip
    if not chip.hbm_bytes or not chip.hbm_bytes_per_s:
        return question.batch
    weights_s = float(step.weights_s[0] + step.experts_s[0])
    left = _HBM_SHARE * chip.hbm_bytes - weights_s * chip.hbm_bytes_per_s
    # TensorRT-LLM admits what fits when all outputs are as long as they may be.
    whole = question.prompt + question.output * (1.0 if question.row.engine == "trtllm" else 0.5)
    read = float(step.kv_s[0]) * chip.hbm_bytes_per_s
    read *= whole / (question.prompt + question.output / 2)
    return max(1.0, left / read)


def ask_published(row: PublishedRun, models: Mapping[str, Fields]) -> ServingQuestion:
    """Turns a serve row into a question."""
    if row.source == _SILICON:
        return ask_serving(_silicon_row(row))
    return _ask_tpu(row, models)


def _silicon_row(row: PublishedRun) -> ServingRow:
    """The columns that a row of the CSV had; what a run's file leaves out stays empty."""
    layout, batch, dtype = row.table("layout"), row.table("batch"), row.table("dtype")
    engine, _, version = str(row.fields.get("engine") or "").partition(" ")
    name = row.id.removeprefix("aic-")
    dated = name.startswith("2026_")
    gemm = str(dtype.get("gemm") or _WEIGHTS.get(str(dtype.get("weights") or ""), ""))
    tp, dp = int(layout.get("tp") or 1), int(layout.get("attn_dp") or 0)
    columns = {
        "id": name,
        "silicon_data_source": f"{'2026' if dated else 'aic-auto-gap'};"
        f" silicon_concurrency={int(batch.get('concurrency') or 0) * max(1, dp)}",
        "backend": engine,
        "backend_version": version,
        "model_path": _MODELS.get(row.model, row.model),
        "system": row.chip,
        "precision": str(dtype.get("weights") or ""),
        "mode": "agg",
        "isl": batch.get("isl", 0),
        "osl": batch.get("osl", 0),
        "gemm_quant_mode": gemm,
        "moe_quant_mode": gemm,
        "batch_size": batch.get("concurrency", 0),
        "tp_size": tp,
        "attention_dp_size": dp or "",
        "moe_tp_size": layout.get("moe_tp") or 1,
        "moe_ep_size": layout.get("ep") or 1,
        "silicon_ttft_ms": row.measured.get("ttft_ms", 0),
        "silicon_tpot_ms": row.measured.get("tpot_ms", 0),
    }
    return ServingRow({key: str(value) for key, value in columns.items()})


def _ask_tpu(row: PublishedRun, models: Mapping[str, Fields]) -> ServingQuestion:
    """A run that states its chips, lengths and dtypes, or its largest batch and its tokens/s."""
    sized = sized_model(row, models)
    batch, dtype = row.table("batch"), row.table("dtype")
    held = int(batch.get("concurrency") or batch.get("max_batch") or 0)
    generates = bool(batch.get("generate_only"))
    prompt = int(batch.get("isl") or batch.get("max_in") or batch.get("kv_len") or 0)
    output = int(batch.get("osl") or batch.get("max_out") or 0)
    if generates:  # nobody says how much of the cache was filled
        prompt, output = prompt // 2, 1
    if not (held and prompt and output):
        raise UsageError("the row does not say its load and lengths", hint="add batch:")
    tpot_s = _tpot_s(row, held)
    stored = DTYPES[str(dtype.get("weights") or "bf16")]
    cached = DTYPES[str(dtype.get("kv") or "bf16")]
    chips = int(row.fields.get("chips") or 1)
    split = min(int(row.table("layout").get("ep") or 1), chips)
    assumed = list(sized.assumed)
    if generates:
        assumed.append("half of the cache is filled")
    if "max_in" in batch:
        assumed.append("requests as long as they may be, and a full batch")
    stands = ServingRow(
        {
            "id": row.id,
            "backend": row.source,
            "model_path": row.model,
            "system": row.chip,
            "mode": "disagg" if generates else "agg",
            "isl": str(prompt),
            "osl": str(output),
            "gemm_quant_mode": stored.name,
            "tp_size": str(chips),
            "silicon_data_source": row.source,
            "silicon_tpot_ms": str(tpot_s * 1e3),
            "silicon_ttft_ms": str(row.measured.get("ttft_ms") or 0),
        }
    )
    return ServingQuestion(
        stands,
        sized.spec,
        str(measured_chips()[row.chip]["chip"]),
        tp=chips,
        dp=1,
        ep=split if sized.is_moe else 1,
        precision=Precision(stored, cached, stored.name),
        batch=float(held),
        prompt=prompt,
        output=output,
        drafted=0,
        cached=0.0,
        eager=False,
        kernels=0,
        assumed=tuple(assumed),
        kv="batch" if row.table("layout").get("kv") == "batch" else "heads",
    )


def _tpot_s(row: PublishedRun, held: int) -> float:
    stated = row.measured.get("tpot_ms")
    if stated:
        return float(stated) / 1e3
    rate = row.measured.get("output_tokens_per_s")
    if not rate:
        raise UsageError("the row measures neither tpot_ms nor tokens/s", hint="add measured:")
    return held / float(rate)
