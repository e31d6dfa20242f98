"""Serving rows replayed: each one asked, its parts listed, its time per token measured; or refused.

In: `ServingRow`s. Out: `CaseSet`, as training rows become: what fits, holds out and reports them
does not know the one from the other.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from rooflight.errors import RooflightError
from rooflight.hardware.calibration import DENSE, EXPERTS
from rooflight.hardware.catalog import load_chip
from rooflight.measure.published.replay import Case, CaseSet, RefusedRow, Watch
from rooflight.measure.published.rows import PublishedFile
from rooflight.measure.published.serving_loop import ServingTable, serving_table
from rooflight.measure.published.serving_parts import parts_of
from rooflight.measure.published.serving_published import ask_published
from rooflight.measure.published.serving_question import ServingQuestion, ask_serving
from rooflight.measure.published.serving_rows import read_serving_rows

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
