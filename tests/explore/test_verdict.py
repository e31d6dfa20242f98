"""Verdict: dumps, plans and verdicts of any size, as the command line reads them."""

import json
import os
import re
import shutil
from importlib.resources import files as package_files
from pathlib import Path

import pytest

from rooflight.compile.hlo.dump import choose_dump, find_dumps, read_dump
from rooflight.compile.time.step import compiled_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.ui.answer import Answer
from rooflight.ui.answers.timeline import binned
from rooflight.ui.browser.verdict import VIEW
from rooflight.ui.browser.view import Files
from rooflight.ui.svg.gantt import Bar, Gantt, GanttRow
from rooflight.ui.text.answer import answer_text
from rooflight.units import format_seconds, format_si

from ..reference_loop import standard_s
from .conftest import OpenVisit, Visit

DUMP = Path(__file__).parents[1] / "verify" / "dumps" / "fsdp"
LONGEST_S = 10.0  # of a standard CPU


def ask(folder: Path, **given: str) -> Answer:
    return VIEW.answer(VIEW.ask(given, Files(folder)))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UsageError, match="neither a verdict"):
        ask(tmp_path, file="pipe.json")
    assert "Nothing to open lies here" in ask(tmp_path).sentences[0]
    with pytest.raises(UsageError, match="there is no"):
        ask(tmp_path, file="a" * 399)


def verdict(count: int) -> dict[str, object]:
    """As `rooflight verify --json` writes it, with so many collectives."""
    collectives = [
        {
            "kind": "all_gather" if i % 2 else "reduce_scatter",
            "axes": ["X"],
            "dtype": "bf16",
            "nbytes": 1000 + i % 500,
            "count": 2,
            "source": f"src/model.py:{i % 900}",
            "op_name": f"jit(step)/layer_{i}/mlp",
            "seconds": 1e-6,
        }
        for i in range(count)
    ]
    finding = {"kind": "surprise", "words": "an all-gather nobody planned", "seconds": 0.01}
    rest = {"nbytes": 5, "where": "src/model.py:7", "fix": "pin it"}
    return {
        "schema": 1,
        "verb": "verify",
        "plan": "abc",
        "slice": "v5e:4x4",
        "findings": [finding | rest for _ in range(count // 10)],
        "compiles": [{"until": "scheduled", "outcome": "compiled", "words": "", "seconds": 3.0}],
        "versions": {"jax": "0.10"},
        "matched": {"count": 10, "bytes": 100, "share": 0.5},
        "collectives": collectives,
        "missing": [
            {"expected": {"kind": "all_reduce", "axes": ["Y"], "nbytes": 64}, "count": 3},
        ],
        "surplus": [{"kind": "all_gather", "axes": ["X"], "nbytes": 1001, "count": 2}],
        "warnings": [],
        "time": {"planned_s": 0.5, "compiled": {"seconds": 0.6}},
        "memory": {
            "planned_bytes": 10**9,
            "compiler_bytes": 12 * 10**8,
            "terms": [{"name": "weights", "planned_bytes": 5, "program_bytes": 6, "because": "x"}],
        },
    }


def test_a_dump_is_read_as_the_command_line_reads_it(visit: OpenVisit, folder: Path) -> None:
    shutil.copytree(DUMP, folder / "dump", dirs_exist_ok=True)
    there = visit("/verdict")
    there.page.get_by_role("link", name="dump: dump").click()
    there.settle().fill("on", "v5e:4x4")
    mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    step = read_dump(choose_dump(find_dumps(DUMP), module=None, where=DUMP), axes=mesh.axes)
    facts = there.facts()
    assert facts["seconds"] == format_seconds(compiled_time(step, mesh).seconds)
    moved = sum(c.bytes_per_step or 0 for c in step.collectives)
    assert facts["collective_bytes"] == format_si(moved, "B")
    assert there.page.locator("figure[data-picture=schedule] svg").count() == 1
    assert there.page.locator("figure[data-picture=memory] svg").count() == 1
    again = visit(there.page.url.removeprefix(there.url))
    assert again.facts() == facts


def test_a_verdict_sets_expected_against_found(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps(verdict(20)))
    answer = ask(tmp_path, file="v.json")
    tables = {table.key: table for table in answer.tables}
    rows = {row[:2]: row[2:] for row in tables["expected"].rows}
    found = sum(2 * (1000 + i) for i in range(20) if i % 2)
    assert rows["all-gather", "X"] == (found - 2002, found, None, 2002)
    assert rows["all-reduce", "Y"] == (192, 0, 192, None)
    assert "2 findings" in answer.sentences[0]
    facts = {fact.key: fact.value for fact in answer.facts}
    assert facts["compiled_s"] == 0.6 and facts["matched_share"] == 0.5


def test_a_saved_verdict_of_a_function_has_its_time_and_findings(tmp_path: Path) -> None:
    network = {"X": {"exposed_s": 0.1, "hidden_s": 0.2}}
    time = {"seconds": 0.4, "busy_s": {"matrix": 0.3}, "network": network, "ops": {"compiler": 2}}
    of_function = {"plan": "", "fn": "steps:build", "mesh": "X=4@x", "least_s": 0.3, "flops": None}
    memory = {"compiler_bytes": 7 * 10**9, "limit_bytes": 16 * 10**9}
    document = verdict(20) | of_function | {"time": time, "memory": memory}
    (tmp_path / "v.json").write_text(json.dumps(document))
    answer = ask(tmp_path, file="v.json")
    assert answer.sentences == (
        "steps:build on v5e:4x4, mesh X=4@x: 2 findings (compiled in 3 s).",
        "A step takes at least 300 ms: matmuls per device at the peak rate, 20 collectives one"
        " after the other.",
        "A step takes 400 ms by the compiler's estimates and our network model, not measured.",
        "Memory: 7 GB of 16 GB per device.",
    )
    text = answer_text(answer)
    assert text.count("- an all-gather nobody planned [10 ms per step, model.py:7]") == 2
    assert re.search(r"network X +100 ms +200 ms", text)
    assert "2 of 2 ops (100%) carry the compiler's cycle estimate" in text


def test_many_megabytes_open_as_a_small_page(visit: OpenVisit, folder: Path) -> None:
    (folder / "large.json").write_text(json.dumps(verdict(60_000)))
    assert (folder / "large.json").stat().st_size > 8_000_000
    visits: list[Visit] = []
    assert (
        standard_s(lambda: visits.append(visit("/verdict?file=large.json")), rounds=1) < LONGEST_S
    )
    there = visits[0]
    assert len(there.page.content()) < 300_000
    assert len(there.rows("collectives")) == 60 and len(there.rows("findings")) == 60
    caption = there.page.locator("table[data-table=collectives] caption").text_content()
    assert "left out" in (caption or "")


def test_a_long_schedule_is_drawn_with_few_bars() -> None:
    bars = tuple(Bar("P", "P", i * 1.0, i + 0.9, f"op {i}") for i in range(100_000))
    long = Bar("N", "N", 0.0, 50_000.0, "a long one")
    rows = (GanttRow("matrix unit", bars), GanttRow("network X", (long,)))
    chart = Gantt("A step", "", rows, {"P": "matmuls", "N": "network"}, "")
    small = binned(chart, most=500)
    assert len(small.rows[0].bars) <= 501 and small.end == chart.end
    assert small.rows[1].bars == (long,)
    assert "pieces" in small.rows[0].bars[0].tooltip


def test_a_plan_says_what_it_expects(tmp_path: Path) -> None:
    plan = package_files("rooflight.compile") / "example_plan.json"
    (tmp_path / "plan.json").write_text(plan.read_text())
    answer = ask(tmp_path, file="plan.json")
    assert "are expected; nothing was compiled" in answer.sentences[0]
    assert answer.tables[0].rows


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"verb": "verify"}', '{"verb": "verify", "findings": 3}', "HloModule"),
        '{"verb": "verify", "findings": [], "collectives": [{"axes": 3, "nbytes": "x"}, 4]}',
        '{"verb": "verify", "findings": [], "time": {"planned_s": NaN}, "memory": []}',
        '{"verb": "plan"}',
    ],
)
def test_a_file_that_is_none_of_these_is_refused_or_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    try:
        answer = ask(tmp_path, file="odd.json")
    except UsageError as error:
        assert error.hint
    else:
        assert answer.sentences


def test_an_empty_folder_shows_an_example(tmp_path: Path) -> None:
    answer = ask(tmp_path)
    assert "Nothing to open lies here" in answer.sentences[0] and answer.tables
