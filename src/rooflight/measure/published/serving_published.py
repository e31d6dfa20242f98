"""Serving rows of a file of measured runs, as rows of the serving CSV are.

In: a `PublishedRun` of kind serve, and the models of its file. Out: a `ServingQuestion`. Rows taken
from the CSV are put back into its columns; those of TPUs name their own chips, sizes and lengths.
"""

from collections.abc import Mapping

from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.calibration import measured_chips
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.rows import Fields, PublishedRun
from rooflight.measure.published.serving_question import ServingQuestion, ask_serving
from rooflight.measure.published.serving_rows import ServingRow
from rooflight.plan.serving.step.precision import Precision

_SILICON = "aic-silicon"
_MODELS = {
    "deepseek3-671b": "DeepSeek-R1",
    "llama3.1-70b": "Llama-3.1-70B",
    "qwen3-32b": "Qwen3-32B",
}
_WEIGHTS = {"": "", "fp4": "nvfp4"}


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
