"""Serving rows: what a row says, what its recipes add, what is assumed, what is refused."""

from pathlib import Path

import pytest

from rooflight.errors import ParseError, UsageError
from rooflight.measure.published.serving_question import ServingQuestion, ask_serving
from rooflight.measure.published.serving_rows import ServingRow, read_serving_rows

_ROW = {
    "id": "a",
    "silicon_data_source": "source_file=2026-04-06.csv; silicon_concurrency=32;"
    " measured=2026-03-20T00:00:00Z",
    "backend": "vllm",
    "backend_version": "0.19.0",
    "model_path": "meta-llama/Llama-3.1-70B",
    "system": "h200_sxm",
    "precision": "fp8",
    "mode": "agg",
    "isl": "1024",
    "osl": "1024",
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "fp8",
    "batch_size": "32",
    "tp_size": "4",
    "attention_dp_size": "1",
    "moe_tp_size": "4",
    "moe_ep_size": "1",
    "silicon_ttft_ms": "100",
    "silicon_tpot_ms": "10",
}


def _ask(**changed: str) -> ServingQuestion:
    return ask_serving(ServingRow(_ROW | changed))


def test_lengths_are_the_mean_of_what_the_benchmark_draws() -> None:
    question = _ask()
    assert (question.prompt, question.output, question.batch) == (922, 922, 32.0)
    own = _ask(silicon_data_source="aic-auto-gap/x.csv; silicon_concurrency=64")
    assert (own.prompt, own.batch) == (1024, 32.0)  # its batch is that of one replica


@pytest.mark.parametrize(
    ("columns", "split"),
    [
        (("8", "1", "8", "1"), (8, 1, 1)),
        (("8", "1", "1", "8"), (8, 1, 8)),
        (("64", "1", "8", "8"), (8, 1, 8)),  # tp and ep multiplied
        (("1", "64", "8", "8"), (1, 8, 8)),
        (("4", "4", "1", "16"), (1, 4, 4)),
        (("1", "8", "1", "8"), (1, 8, 8)),
        (("8", "1", "2", "4"), (8, 1, 4)),
    ],
)
def test_columns_that_were_multiplied_are_taken_apart(
    columns: tuple[str, ...], split: tuple[int, int, int]
) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    question = _ask(model_path="MiniMaxAI/MiniMax-M2.5", **dict(zip(names, columns, strict=True)))
    assert (question.tp, question.dp, question.ep) == split


def test_drafting_comes_from_the_recipe_of_the_version() -> None:
    row = {
        "backend": "trtllm",
        "model_path": "deepseek-ai/DeepSeek-R1",
        "system": "b200_sxm",
        "precision": "fp4",
        "gemm_quant_mode": "nvfp4",
        "moe_quant_mode": "nvfp4",
        "moe_tp_size": "4",
    }
    source = "x; silicon_concurrency=8; measured=2026-02-20"
    plain = _ask(**row, backend_version="1.2.0rc6.post2", silicon_data_source=source)
    ahead = _ask(**row, backend_version="1.2.0rc6.post3", silicon_data_source=source)
    assert (plain.drafted, ahead.drafted) == (0, 3)
    assert any("draft tokens, as its recipe says" in text for text in ahead.assumed)
    stored = _ask(**row, backend_version="1.2.0rc6.post3", silicon_data_source="db-dump; " + source)
    assert stored.drafted == 0


def test_a_total_of_gpus_is_no_layout() -> None:
    with pytest.raises(UsageError, match="72 GPUs of all workers together"):
        _ask(model_path="deepseek-ai/DeepSeek-R1", system="gb200", tp_size="72", moe_tp_size="72")


def test_caches_of_quantised_models_are_fp8() -> None:
    assert _ask().precision.kv.name == "fp8"
    assert _ask(gemm_quant_mode="", precision="").precision.kv.name == "bf16"


def test_rows_of_one_configuration_differ_only_in_load_and_date() -> None:
    other = ServingRow(_ROW | {"silicon_data_source": "db-dump; silicon_concurrency=64"})
    assert other.configuration == ServingRow(_ROW).configuration
    assert ServingRow(_ROW | {"isl": "8192"}).configuration != other.configuration


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,isl\na,1\n")
    with pytest.raises(ParseError, match="no column silicon_data_source"):
        read_serving_rows(path)
    with pytest.raises(ParseError, match="not a file"):
        read_serving_rows(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "changed",
    [
        {"isl": "long"},
        {"isl": "-5"},
        {"osl": ""},
        {"silicon_tpot_ms": "0"},
        {"silicon_tpot_ms": "nan"},
        {"gemm_quant_mode": "int3"},
        {"system": "abacus"},
        {"silicon_data_source": "x=1", "batch_size": ""},
    ],
)
def test_a_row_that_makes_no_sense_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        _ask(**changed)
