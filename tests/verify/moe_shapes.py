"""A layer of routed experts by the TPU compiler: left to it, written out, and sent in chunks.

`python tests/verify/moe_shapes.py` compiles every shape to the end (half a minute each, then from
the cache) and prints the tables of docs/moe.md; `--write` writes them into the page.
"""

import argparse
import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflight.compile.aot.environment import compiler_versions
from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.costs.network import collective_time
from rooflight.hardware.mesh import parse_mesh
from rooflight.units import format_count, format_seconds, format_si

HERE = Path(__file__).parent
DOC = HERE.parents[1] / "docs" / "moe.md"
BEGIN, END = "<!-- compiled: begin -->\n", "<!-- compiled: end -->"
SLICE = "v5e:2x4"
MESH = parse_mesh("X=8", on=SLICE)
ASYNC = {"xla_tpu_enable_async_all_to_all": "true"}  # as `rooflight.program.moe.all_to_all.ASYNC`
HEADROOM = 1.25


@dataclass(frozen=True, slots=True)
class Shape:
    """E experts, k of them for each of N tokens of D numbers, F inside an expert."""

    experts: int
    active: int
    tokens: int
    width: int
    hidden: int

    @property
    def rows(self) -> int:
        """Places for rows on all devices together."""
        return int(HEADROOM * self.tokens * self.active)

    @property
    def cells(self) -> str:
        sizes = (self.experts, self.active, self.tokens, self.width, self.hidden)
        return " | ".join(format_count(size) for size in sizes)


SHAPES = {
    "Mixtral": Shape(8, 2, 8192, 4096, 14336),
    "narrow": Shape(8, 2, 8192, 4096, 1024),
    "narrow, one expert": Shape(8, 1, 8192, 4096, 1024),
    "narrow, few tokens": Shape(8, 2, 512, 4096, 1024),
    "narrow, many tokens": Shape(8, 2, 32768, 4096, 1024),
    "Qwen3-30B-A3B": Shape(128, 8, 8192, 2048, 768),
    "many experts, one": Shape(128, 1, 8192, 2048, 768),
    "DeepSeek-V3": Shape(256, 8, 8192, 7168, 2048),
}
WIDTHS = (1024, 2048, 4096, 8192)  # of F, in chunks
CHUNKS = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """What the compiler made of a layer."""

    step: CompiledStep
    time: CompiledTime

    @property
    def temporary_bytes(self) -> int:
        assert self.step.memory
        return self.step.memory.by_category["temporaries"]

    @property
    def moved_bytes(self) -> int:
        """Bytes that a device receives: of an all-to-all its own rows, of a sum both ways."""
        return int(sum((c.count or 0) * _received(c.kind, c.nbytes) for c in self.step.collectives))

    @property
    def kinds(self) -> str:
        large = [c for c in self.step.collectives if c.nbytes > 2**20]
        counts = Counter({c.kind.replace("_", "-"): 0 for c in large})
        for found in large:
            counts[found.kind.replace("_", "-")] += found.count or 0
        return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _received(kind: str, nbytes: int) -> float:
    share = 7 / 8
    return nbytes * {"all_to_all": share / 8, "all_reduce": 2 * share, "permute": 1.0}.get(
        kind, share
    )


def compiled(shape: Shape, *, is_explicit: bool, chunks: int = 1) -> Layer:
    arguments = {
        "experts": shape.experts,
        "active": shape.active,
        "tokens": shape.tokens,
        "width": shape.width,
        "hidden": shape.hidden,
        "headroom": HEADROOM,
        "is_explicit": is_explicit,
        "chunks": chunks,
    }
    options = ASYNC if chunks > 1 else {}
    request = CompileRequest(
        "moe_layers:layer", MESH, arguments, until="executable", options=options, folder=str(HERE)
    )
    done = compile_all([request], jobs=1)[0]
    assert done.is_good, done.words
    step = read_compilation(done)
    return Layer(step, compiled_time(step, MESH))


def ratio_table() -> Iterator[str]:
    yield (
        "| layer | E | k | N | D | F | auto | written out | ratio | received, auto | written out"
        " | temporary, auto | written out | collectives of auto |"
    )
    yield "|---|" + "---:|" * 12 + "---|"
    for name, shape in SHAPES.items():
        pair = [compiled(shape, is_explicit=explicit) for explicit in (False, True)]
        auto, explicit = (one.time.seconds for one in pair)
        cells = [
            *(format_seconds(seconds) for seconds in (auto, explicit)),
            f"{auto / explicit:.1f}",
            *(format_si(one.moved_bytes, "B") for one in pair),
            *(format_si(one.temporary_bytes, "B") for one in pair),
            pair[0].kinds,
        ]
        yield f"| {name} | {shape.cells} | {' | '.join(cells)} |"


def chunk_table() -> Iterator[str]:
    """The condition: matmuls of a chunk take as long as its exchange there and back."""
    yield (
        "| F | matmuls of a chunk | exchanges of a chunk | hides by the condition | the chip waits"
        " | first and last alone take | hidden | exchanges with matmuls inside |"
    )
    yield "|---:|" + "---:|" * 7
    for hidden in WIDTHS:
        yield f"| {format_count(hidden)} | {' | '.join(in_chunks(hidden).cells)} |"


@dataclass(frozen=True, slots=True)
class Chunked:
    """A layer in chunks: what one chunk takes, and what the schedule hides of all."""

    matmuls_s: float
    exchange_s: float  # there or back
    exposed_s: float
    hidden_s: float
    num_inside: int  # exchanges with a product between start and done
    num_exchanges: int

    @property
    def hides(self) -> bool:
        """The condition: a chunk's matmuls take as long as two exchanges, in and out."""
        return self.matmuls_s >= 2 * self.exchange_s

    @property
    def cells(self) -> list[str]:
        return [
            format_seconds(self.matmuls_s),
            format_seconds(2 * self.exchange_s),
            "yes" if self.hides else "no",
            format_seconds(self.exposed_s),
            format_seconds(2 * self.exchange_s),
            format_seconds(self.hidden_s),
            f"{self.num_inside} of {self.num_exchanges}",
        ]


def in_chunks(hidden: int) -> Chunked:
    shape = Shape(8, 2, 32768, 4096, hidden)
    layer = compiled(shape, is_explicit=True, chunks=CHUNKS)
    sent = 2 * shape.rows * shape.width // CHUNKS
    network = layer.time.network["X"]
    names = {work.name for work in layer.step.work if work.flops}
    swaps = [c for c in layer.step.collectives if c.kind == "all_to_all"]
    return Chunked(
        layer.time.busy_s["matrix"] / CHUNKS,
        collective_time("all_to_all", sent, MESH.group("X")).expected_s,
        network.exposed_s,
        network.hidden_s,
        sum(bool(names & set(c.overlapped or ())) for c in swaps),
        len(swaps),
    )


def report() -> str:
    day = datetime.date.today().isoformat()
    versions = " ".join(f"{name} {text}" for name, text in compiler_versions("tpu").items())
    head = (
        f"{SLICE}, bf16, forward, places for {HEADROOM} times balanced tokens; {versions}, {day}."
    )
    return "\n".join([head, "", *ratio_table(), "", *_chunks_head(), *chunk_table(), ""])


def _chunks_head() -> Iterator[str]:
    yield f"In {CHUNKS} chunks, N = 32,768, D = 4,096, E = 8, k = 2, with `ASYNC`:"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/moe.md")
    is_written = parser.parse_args().write
    tables = report()
    if not is_written:
        print(tables, end="")
        return
    before, _, rest = DOC.read_text().partition(BEGIN)
    DOC.write_text(before + BEGIN + tables + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
