"""Ring attention beside gathered keys and values: by the TPU compiler, and by the forecast.

`python tests/verify/ring_shapes.py` compiles every shape to the end (from the cache, the second
time) and prints the tables of docs/attention.md; `--write` writes them into the page.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rooflight.api.compiled import verify
from rooflight.api.training import training_question
from rooflight.compile.aot.environment import compiler_versions
from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import with_mode
from rooflight.models.presets import load_model
from rooflight.plan.training.search.candidate import Candidate, price_one
from rooflight.plan.training.search.constraint import parse_constraint, placed_text, region_of
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.units import format_count, format_seconds

HERE = Path(__file__).parent
DOC = HERE.parents[1] / "docs" / "attention.md"
SLICE = "v5e:4x4"
MESH = parse_mesh("X=4,Y=4", on=SLICE)
FORMS = ("ring", "gathered", "plain")
POSITIONS = (1024, 2048, 4096)  # of a device
# Of one model: the slice, the layout that shares a sequence, the tokens of the batch.
ASKED = (
    ("v5e:16x16", "cp=16,fsdp=16"),
    ("v5p:4x4x4", "cp=16,fsdp=4"),
    ("h100:8x8", "cp=8,fsdp=8"),
    ("h100:8x8", "cp=32,fsdp=2"),
)
LENGTHS = (8192, 32_768, 131_072, 524_288, 2_097_152)


@dataclass(frozen=True, slots=True)
class Form:
    """What the compiler made of attention with all gradients."""

    step: CompiledStep
    time: CompiledTime

    @property
    def cells(self) -> list[str]:
        network = self.time.network["Y"]
        busy = self.time.busy_s
        seconds = (self.time.seconds, network.exposed_s, network.hidden_s, busy["memory"])
        return [format_seconds(s) for s in seconds]


def compiled(positions: int, form: str) -> Form:
    arguments = {"form": form, "positions": positions}
    request = CompileRequest(
        "claims:ring_attention", MESH, arguments, until="executable", folder=str(HERE)
    )
    done = compile_all([request], jobs=1)[0]
    assert done.is_good, done.words
    step = read_compilation(done)
    return Form(step, compiled_time(step, MESH))


def versions() -> str:
    return " ".join(f"{name} {text}" for name, text in compiler_versions("tpu").items())


def compiled_table() -> Iterator[str]:
    yield f"Axis Y of {SLICE}, a ring of 4, 8 heads of 128 on 2 of keys, bf16; {versions()}."
    yield ""
    both = " | ".join(
        f"{form}: takes | waits | hides | memory passes" for form in ("ring", "gathered")
    )
    yield f"| positions of a device | {both} | gathered, plain JAX: takes |"
    yield "|---:|" + "---:|" * 9
    for positions in POSITIONS:
        ring, gathered, plain = (compiled(positions, form) for form in FORMS)
        cells = [*ring.cells, *gathered.cells, plain.cells[0]]
        yield f"| {format_count(positions)} | {' | '.join(cells)} |"


def step_table() -> Iterator[str]:
    yield f"Llama 3.2 1B on v5e:2x4, 131,072 tokens per step; {versions()}."
    yield ""
    yield "| layout | sequence | forecast | compiled | matmuls | kernels | memory passes | waits |"
    yield "|---|---:|" + "---:|" * 6
    for layout in ("cp=8", "cp=8:ring"):
        model = training_question("llama3.2-1b", on="v5e:2x4", batch=2**17, seq=8192)
        asked = model.within(layout)
        plan = asked.record(asked.search(count=1))
        time = verify(plan, until="executable").time
        assert time is not None and plan.time.forecast is not None
        parts = [time.busy_s[unit] for unit in ("matrix", "kernels", "memory")]
        waits = sum(network.exposed_s for network in time.network.values())
        cells = [plan.time.forecast.seconds, time.seconds, *parts, waits]
        yield f"| `{layout}` | 8,192 | {' | '.join(map(format_seconds, cells))} |"


def forecast_pair(on: str, layout: str, seq: int) -> tuple[Candidate, Candidate]:
    """The best of such a layout, keys gathered, and the same around a ring."""
    graph = model_graph(load_model("llama3-8b"))
    asked = train_question(graph, parse_slice(on), 32, seq, DTYPES["bf16"])
    region, _ = region_of(parse_constraint(f"{layout},remat=block", graph), asked)
    asked = replace(asked, region=replace(region, must_fit=False))
    plain = plan_training(asked, count=1).candidates[0]
    ring = with_mode(plain.layout, "cp", "ring")
    return plain, price_one(asked, ring, plain.mesh, plain.micro, plain.remat)


def forecast_table() -> Iterator[str]:
    forms = "gathered: step | waits | ring: step | waits"
    yield f"| slice | layout | sequence | {forms} | ring / gathered |"
    yield "|---|---|---:|" + "---:|" * 5
    for on, layout in ASKED:
        for seq in LENGTHS:
            pair = forecast_pair(on, layout, seq)
            cells = [
                format_seconds(s)
                for c in pair
                for s in (c.forecast.seconds, c.forecast.breakdown.exposed_s)
            ]
            ratio = pair[1].forecast.seconds / pair[0].forecast.seconds
            where = placed_text(pair[0])
            row = (on, f"`{where}`", format_count(seq), *cells, f"{ratio:.3f}")
            yield f"| {' | '.join(row)} |"


TABLES = {"compiled": compiled_table, "step": step_table, "forecast": forecast_table}


def block(page: str, name: str) -> str:
    """What the page has between the marks of a table."""
    return page.partition(f"<!-- {name}: begin -->\n")[2].partition(f"<!-- {name}: end -->")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write them into docs/attention.md")
    is_written = parser.parse_args().write
    page = DOC.read_text()
    for name, lines in TABLES.items():
        table = "\n".join([*lines(), ""])
        print(table, end="")
        head, begin, rest = page.partition(f"<!-- {name}: begin -->\n")
        _, end, tail = rest.partition(f"<!-- {name}: end -->")
        assert end, f"{DOC.name} has no marks for {name}"
        page = f"{head}{begin}{table}{end}{tail}"
    if is_written:
        DOC.write_text(page)


if __name__ == "__main__":
    main()
