"""Compares the chosen steps with what XLA's partitioner does: `python xla_report.py [--write]`.

Prints the tables of docs/xla.md, or writes them there. Both sides count a collective by kind, mesh
axes and bytes; a case is equal when the two multisets are.
"""

import argparse
import importlib.metadata
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from xla_cases import TOPOLOGY, Case, cases
from xla_collectives import Collective, collectives
from xla_partition import partitioned

from rooflight.algebra.contract import strategies
from rooflight.costs.choose import Price, choose
from rooflight.costs.network import CollectiveKind, collective_time
from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import Mesh, parse_mesh

DOC = Path(__file__).parents[2] / "docs" / "xla.md"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
DTYPE = DTYPES["bf16"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case: the collectives of the chosen strategy, XLA's, and the fastest strategy of all."""

    case: Case
    mesh: Mesh
    chosen: Price
    fastest: Price
    ours: Counter[Collective]
    xla: Counter[Collective]

    @property
    def is_equal(self) -> bool:
        return self.ours == self.xla

    @property
    def communicates(self) -> bool:
        return bool(self.ours or self.xla)

    @property
    def difference(self) -> str:
        """The class of difference: a heading of docs/xla.md."""
        ours, xla = ({c.kind for c in side} for side in (self.ours, self.xla))
        if {a for c in self.xla for a in c.axes} - set(self.case.contraction.mesh_axes):
            return "An idle axis"
        if "permute" in ours and "permute" in xla:
            return "A permute with less or more around it"
        if "permute" in ours:
            return "A permute instead of a larger gather"
        if "all_to_all" in ours:
            return "An exchange instead of gathers"
        if _gathers(self.xla) > _gathers(self.ours):
            return "Weights that stay"
        return "unexplained"

    @property
    def slowdown(self) -> float:
        """Network time of XLA's collectives over that of ours."""
        return network_s(self.xla, self.mesh) / network_s(self.ours, self.mesh)


def _gathers(side: Counter[Collective]) -> int:
    return sum(n for c, n in side.items() if c.kind == "all_gather")


def network_s(side: Counter[Collective], mesh: Mesh) -> float:
    """Time of a list of collectives, one after another, as `costs.choose` prices them."""
    return sum(n * _seconds(c, mesh) for c, n in side.items())


def _seconds(collective: Collective, mesh: Mesh) -> float:
    group = mesh.group(collective.axes)
    if collective.kind == "permute":
        return collective_time("all_to_all", collective.nbytes * group.size, group).expected_s
    kind = cast(CollectiveKind, collective.kind)
    return collective_time(kind, collective.nbytes, group).expected_s


def compare() -> list[Comparison]:
    """Every case, chosen and compiled."""
    found: list[Comparison] = []
    every = cases()
    for text in dict.fromkeys(c.mesh for c in every):
        mesh = parse_mesh(text, on=TOPOLOGY)
        chosen = [c for c in every if c.mesh == text]
        compiled = collectives(partitioned(text), mesh.axes)
        found += [_compare(c, mesh, xla) for c, xla in zip(chosen, compiled, strict=True)]
    return found


def _compare(case: Case, mesh: Mesh, xla: Counter[Collective]) -> Comparison:
    candidates = strategies(case.contraction, mesh.axes)
    choice = choose(candidates, dims=case.dims, mesh=mesh, dtype=DTYPE)
    fastest = min((choice.best, *choice.losers), key=lambda p: p.expected_s)
    return Comparison(case, mesh, choice.best, fastest, _ours(choice.best, case, mesh), xla)


def _ours(price: Price, case: Case, mesh: Mesh) -> Counter[Collective]:
    return Counter(
        Collective(
            step.op,
            tuple(a for a in mesh.axes if a in step.axes),
            DTYPE.nbytes(math.ceil(step.elements(case.dims, mesh.axes))),
        )
        for step in price.strategy.collectives
    )


def report(found: Sequence[Comparison]) -> str:
    """The generated part of docs/xla.md."""
    equal = sum(c.is_equal for c in found)
    talk = [c for c in found if c.communicates]
    lines = [
        f"{versions()}: **{equal} of {len(found)} cases are equal"
        f" ({100 * equal / len(found):.1f} %)**; of the {len(talk)} in which anyone communicates,"
        f" {sum(c.is_equal for c in talk)} ({_percent(talk)}).",
        "",
        *_layout_table(found),
        "",
        "Where they differ:",
        "",
        *_difference_table(found),
        "",
        _reroute_line(found),
    ]
    return "\n".join(lines) + "\n"


def versions() -> str:
    """The compiler that was asked."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))


def _percent(found: Sequence[Comparison]) -> str:
    return f"{100 * sum(c.is_equal for c in found) / len(found):.1f} %" if found else "none"


def _layout_table(found: Sequence[Comparison]) -> Iterable[str]:
    yield "| layout, sizes, mesh | cases | communicate | equal |"
    yield "|---|---:|---:|---:|"
    for name in dict.fromkeys(_layout(c) for c in found):
        rows = [c for c in found if _layout(c) == name]
        talk = sum(c.communicates for c in rows)
        yield f"| {name} | {len(rows)} | {talk} | {sum(c.is_equal for c in rows)} |"


def _layout(comparison: Comparison) -> str:
    return comparison.case.name.partition(":")[0]


def _difference_table(found: Sequence[Comparison]) -> Iterable[str]:
    yield "| class | cases | XLA's network time / ours, median (range) | for instance |"
    yield "|---|---:|---:|---|"
    different = [c for c in found if not c.is_equal]
    for name, count in Counter(c.difference for c in different).most_common():
        rows = [c for c in different if c.difference == name]
        times = [c.slowdown for c in rows]
        middle = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        yield f"| {name} | {count} | {middle} | {_example(rows[0])} |"


def _example(comparison: Comparison) -> str:
    ours, xla = (
        " + ".join(map(str, side.elements())) for side in (comparison.ours, comparison.xla)
    )
    return f"`{comparison.case.contraction}` ours: {ours}; XLA: {xla}"


def _reroute_line(found: Sequence[Comparison]) -> str:
    gains = [
        c.chosen.expected_s / c.fastest.expected_s
        for c in found
        if c.fastest.expected_s < c.chosen.expected_s
    ]
    equal = sum(_ours(c.fastest, c.case, c.mesh) == c.xla for c in found)
    return (
        f"A reroute is expected to be faster in {len(gains)} cases, by"
        f" {statistics.median(gains):.2f}x in the median and {max(gains):.2f}x at most. Ranked by"
        f" time alone, {equal} cases ({100 * equal / len(found):.1f} %) would be equal."
    )


def generated(text: str) -> str:
    """The generated part of a doc."""
    return text.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/xla.md")
    tables = report(compare())
    if not parser.parse_args().write:
        print(tables, end="")
        return
    text = DOC.read_text()
    DOC.write_text(text.replace(BEGIN + generated(text) + END, BEGIN + tables + END))


if __name__ == "__main__":
    main()
