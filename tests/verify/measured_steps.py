"""Published steps replayed: the layout as published, compiled wholly, against what was measured.

`python tests/verify/measured_steps.py` compiles every row of measured_steps.toml (each in one to
ten minutes, then from the cache) and prints the table of docs/compiled-time.md.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from plans import EXAMPLE

from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.compile.findings.subject import BUILD
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import compiled_time
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.file.record import Plan, to_json
from rooflight.units import format_seconds

Row = dict[str, Any]  # as the file has it
HEAD_DIM = 128
# What does not fit is compiled all the same: the published runs keep some of it in host memory.
GO_ON = {"xla_tpu_no_crash_on_oom": True}
# The book's all-gather on v5e took 680 us where its formula has 560 us (chapter 3, pop quiz 2).
CALIBRATED = 0.82


@dataclass(frozen=True, slots=True)
class Run:
    """A published step: its plan, the compiler's options, its seconds."""

    row: Row
    plan: Plan
    request: CompileRequest

    @property
    def name(self) -> str:
        return f"{self.row['model']} on {self.row['slice']}"

    @property
    def measured_s(self) -> float:
        """As published, or from TFLOP/s per chip with MaxText's own count (`published_flops`)."""
        if "step_s" in self.row:
            return self.row["step_s"]
        chips = self.plan.placed().slice.num_chips
        flops = published_flops(self.plan.model, self.plan.batch, self.plan.seq)
        return flops / chips / (self.row["tflops_per_chip"] * 1e12)


def published_flops(model: ModelSpec, batch: int, seq: int) -> float:
    """MaxText's count before July 2025: 6 P tokens + 12 L N H T tokens, no halving for causality.

    P are the weights that multiply, the table of the head included and that of the embedding not.
    """
    run = model.layers[0]
    block = run.blocks[0]
    assert isinstance(block.mlp, Mlp)
    heads = block.attention.num_heads * HEAD_DIM
    kv = block.attention.num_kv_heads * HEAD_DIM
    layer = model.d_model * (2 * heads + 2 * kv + 3 * block.mlp.width)
    weights = run.times * layer + model.d_model * model.vocab
    tokens = batch * seq
    return 6.0 * weights * tokens + 12.0 * run.times * heads * seq * tokens


def runs() -> list[Run]:
    """Every row of the file."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    models = {name: _model(name, row) for name, row in document["models"].items()}
    options = document["options"]
    return [_run(row, models[row["model"]], options[row["source"]]) for row in document["runs"]]


def _run(row: Row, model: ModelSpec, options: Row) -> Run:
    keys = ("slice", "batch", "seq", "layout", "mesh", "remat")
    plan = replace(
        EXAMPLE, model=model, recipe="f32", microbatches=1, **{key: row[key] for key in keys}
    )
    arguments = {"plan": to_json(plan)}
    how = {**options, **GO_ON}
    request = CompileRequest(
        BUILD, plan.placed(), arguments, until="executable", options=how, timeout_s=3000
    )
    return Run(row, plan, request)


def _model(name: str, row: Row) -> ModelSpec:
    attention = Attention(row["heads"], row["kv_heads"], HEAD_DIM)
    layers = (Repeat((Block(attention, Mlp(row["d_ff"])),), row["layers"]),)
    return ModelSpec(name, name, row["d_model"], row["vocab"], layers)


def error_table(found: list[tuple[Run, CompiledStep]]) -> str:
    """Measured against composed, with the network as modelled and as the book measured it."""
    lines = [
        "| model | slice | layout | remat | measured | compiled | error | calibrated network |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain: list[float] = []
    calibrated: list[float] = []
    for run, step in found:
        mesh = run.plan.placed()
        seconds = compiled_time(step, mesh).seconds
        slower = compiled_time(step, mesh, network_share=CALIBRATED).seconds
        plain.append(seconds / run.measured_s - 1)
        calibrated.append(slower / run.measured_s - 1)
        row = run.row
        times = f"{format_seconds(run.measured_s)} | {format_seconds(seconds)}"
        lines.append(
            f"| {row['model']} | {row['slice']} | {row['layout']}, {row['mesh']} | {row['remat']}"
            f" | {times} | {plain[-1]:+.1%} | {calibrated[-1]:+.1%} |"
        )
    medians = [median(map(abs, errors)) for errors in (plain, calibrated)]
    lines.append(f"| median of {len(found)} | | | | | | {medians[0]:.1%} | {medians[1]:.1%} |")
    return "\n".join(lines)


def main() -> None:
    done: list[tuple[Run, CompiledStep]] = []
    for run in runs():
        compiled = compile_all([run.request], jobs=1)[0]
        if compiled.is_good:
            done.append((run, read_compilation(compiled)))
        else:
            print(f"{run.name}: {compiled.outcome} {compiled.words}")
    print(error_table(done))


if __name__ == "__main__":
    main()
