"""Whole steps on GPUs: a GPT as others measured it, written in JAX, compiled, priced; a table.

The measured runs are llm-foundry's (PyTorch FSDP, flash attention of 2023), and decide none of the
constants. Ours holds more than theirs and does not fit, which does not matter to its time.
"""

import os
from pathlib import Path

import pytest
from test_gpu import cuda

from rooflight.compile.aot.program import verify_program
from rooflight.compile.time.step import compiled_time
from rooflight.hardware.mesh import parse_mesh
from rooflight.units import format_seconds

assert cuda  # a fixture
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "verify.md"
MARK, END = "<!-- gpu steps -->\n", "<!-- end -->"
SIZES = {"mpt-3b": (32, 2560), "mpt-760m": (24, 1536)}
# Model, positions, sequences of a microbatch on a GPU, microbatches, measured tokens/s of a GPU:
# mosaicml/llm-foundry 8c8dd48f72, scripts/train/benchmarking/README.md, read 2026-11-19.
RUNS = (
    ("mpt-3b", 1024, 20, 6, 27046),
    ("mpt-3b", 4096, 5, 6, 20964),
    ("mpt-3b", 8192, 3, 6, 16578),
    ("mpt-3b", 16384, 1, 6, 11152),
    ("mpt-760m", 2048, 24, 2, 63147),
    ("mpt-760m", 8192, 6, 2, 41825),
)


def _table(python: str) -> tuple[str, list[float]]:
    mesh, ratios = parse_mesh("X=8", on="h100:8"), list[float]()
    lines = [
        "| model | positions | measured | priced | ratio | give or take |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for model, seq, micro, rounds, per_second in RUNS:
        layers, width = SIZES[model]
        sizes: dict[str, object] = {"layers": layers, "width": width, "seq": seq, "micro": micro}
        sizes |= {"rounds": rounds, "remat": False}
        verdict = verify_program(
            "gpu_gpt:build", mesh, folder=str(HERE), arguments=sizes, python=python
        )
        assert verdict.scheduled, verdict.done[0].last_words
        time = compiled_time(verdict.scheduled, mesh)
        assert time.error and not time.unknown
        measured = seq * micro * rounds / per_second
        ratios.append(time.seconds / measured)
        cells = format_seconds(measured), format_seconds(time.seconds), f"{ratios[-1]:.2f}"
        lines.append(f"| {model} | {seq:,} | {' | '.join(cells)} | {time.error:.0%} |")
    return "\n".join(lines) + "\n", ratios


@pytest.mark.full
def test_steps_that_others_measured_are_priced_within_a_third(cuda: Path) -> None:
    table, ratios = _table(str(cuda / "bin" / "python"))
    page = PAGE.read_text()
    before, mark, rest = page.partition(MARK)
    _, end, after = rest.partition(END)
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        PAGE.write_text(f"{before}{mark}{table}{end}{after}")
    else:
        assert f"{mark}{table}{end}" in page
    away = sorted(abs(ratio - 1) for ratio in ratios)
    assert away[-1] < 1 / 3 and away[len(away) // 2] < 0.2
