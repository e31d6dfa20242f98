"""Collective matmuls beside plain ones by the TPU compiler: from which shape each wins.

`python tests/verify/matmul_shapes.py` compiles every shape to the end (from the cache, the second
time) and prints the table of docs/collective-matmul.md; `--write` writes it into the page.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflight.compile.aot.environment import compiler_versions
from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.costs.network import collective_time
from rooflight.hardware.mesh import parse_mesh
from rooflight.units import format_count, format_seconds

HERE = Path(__file__).parent
DOC = HERE.parents[1] / "docs" / "collective-matmul.md"
BEGIN, END = "<!-- compiled: begin -->\n", "<!-- compiled: end -->"
SLICE = "v5e:4x4"
MESH = parse_mesh("X=4,Y=4", on=SLICE)
BUILDS = {"gather_matmul": "gather, then multiply", "matmul_scatter": "multiply, then scatter"}


@dataclass(frozen=True, slots=True)
class Shape:
    """I tokens of all devices, J and K as the whole weight has them."""

    rows: int
    contract: int
    columns: int

    def moved(self, build: str) -> int:
        """Bytes of the array that is gathered, or scattered, in bf16."""
        return 2 * self.rows * (self.contract if build == "gather_matmul" else self.columns)


SHAPES = (
    *(Shape(4096, 4096, columns) for columns in (1024, 4096, 14_336)),
    Shape(512, 8192, 8192),
    Shape(16_384, 8192, 28_672),
)


def compiled(build: str, shape: Shape, *, is_collective: bool) -> CompiledTime:
    sizes = (shape.rows, shape.contract, shape.columns)
    if build == "matmul_scatter":  # the way back of the same weight
        sizes = (shape.rows, shape.columns, shape.contract)
    arguments = {"is_collective": is_collective, "sizes": sizes}
    request = CompileRequest(
        f"claims:{build}", MESH, arguments, until="executable", folder=str(HERE)
    )
    done = compile_all([request], jobs=1)[0]
    assert done.is_good, done.words
    return compiled_time(read_compilation(done), MESH)


def table() -> Iterator[str]:
    versions = " ".join(f"{name} {text}" for name, text in compiler_versions("tpu").items())
    yield f"Axis Y of {SLICE}, a ring of 4, bf16, forward; {versions}."
    yield ""
    yield (
        "| form | I | J | K | matmul | network | plain: takes | waits | collective: takes | waits"
        " | hides | collective / plain |"
    )
    yield "|---|" + "---:|" * 11
    for build, words in BUILDS.items():
        for shape in SHAPES:
            yield f"| {words} | {' | '.join(cells(build, shape))} |"


def cells(build: str, shape: Shape) -> list[str]:
    plain, collective = (compiled(build, shape, is_collective=way) for way in (False, True))
    moved = 2 * shape.rows * shape.contract
    sent = collective_time("all_gather", moved, MESH.group("Y")).expected_s
    sizes = (shape.rows, shape.contract, shape.columns)
    if build == "matmul_scatter":
        sizes = (shape.rows, shape.columns, shape.contract)
    seconds = (
        *(plain.busy_s["matrix"], sent, plain.seconds, plain.network["Y"].exposed_s),
        *(collective.seconds, collective.network["Y"].exposed_s, collective.network["Y"].hidden_s),
    )
    ratio = f"{collective.seconds / plain.seconds:.2f}"
    return [*map(format_count, sizes), *map(format_seconds, seconds), ratio]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into the page")
    is_written = parser.parse_args().write
    text = "\n".join([*table(), ""])
    print(text, end="")
    if is_written:
        before, _, rest = DOC.read_text().partition(BEGIN)
        DOC.write_text(before + BEGIN + text + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
