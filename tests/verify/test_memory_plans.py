"""Planned memory against the compiler's: all plans as last asked, three of them asked again."""

import importlib.util
import re
import statistics
from pathlib import Path

import pytest
from memory_plans import CASES, DOCS, Case, ask, errors, read_store, table

needs_the_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)
AGAIN = [CASES[0], CASES[8], CASES[13]]  # fsdp, data parallel with microbatches, context parallel


def test_planned_memory_is_close_to_the_compilers_on_thirty_plans() -> None:
    found = [abs(error) for error in errors(read_store()).values()]
    assert len(found) >= 30
    assert statistics.median(found) < 0.025
    assert max(found) < 0.125


def test_the_plans_cover_models_schemes_policies_and_chips() -> None:
    schemes = {word.partition("=")[0] for case in CASES for word in case.layout.split(",")}
    assert schemes == {"dp", "fsdp", "tp", "sp", "cp", "ulysses", "ep"}
    assert {case.remat for case in CASES} == {"none", "dots", "block"}
    assert {case.slice.rpartition("*")[2].partition(":")[0] for case in CASES} == {
        *("v5e", "v5p", "v6e")
    }
    assert any("*" in case.slice for case in CASES)
    assert {case.recipe for case in CASES} == {"10", "16", "18", "f32"}


def test_the_table_in_the_docs_is_the_stored_one() -> None:
    text = DOCS.read_text(encoding="utf-8")
    written = re.search(r"<!-- memory -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    assert written and written[1] == table(read_store())


@needs_the_compiler
@pytest.mark.parametrize("case", AGAIN, ids=lambda case: case.name)
def test_the_compiler_asked_again_needs_what_is_planned(case: Case, tmp_path: Path) -> None:
    nbytes, _ = ask(case, tmp_path)
    assert nbytes == pytest.approx(case.plan().memory.total_bytes, rel=0.04)


@needs_the_compiler
@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_plan_compiles_to_what_is_stored(case: Case, tmp_path: Path) -> None:
    nbytes, _ = ask(case, tmp_path)
    assert nbytes == pytest.approx(read_store().nbytes[case.name], rel=0.02)
