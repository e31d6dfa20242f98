"""Expected collectives against the compiler's on plans of every kind: as stored, and some again."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest
from matched_plans import AGAIN, CASES, DOCS, KINDS, Case, ask, found_in, read_store, table

from rooflight.compile.findings.subject import subject_of

needs_the_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)
FIRST = [next(c for c in CASES if c.kind == kind) for kind in AGAIN]


def test_thirty_plans_have_the_collectives_that_are_expected() -> None:
    found = read_store().found
    assert len(CASES) >= 30 and set(found) == {case.name for case in CASES}
    assert [words for one in found.values() for words in one.findings] == []
    assert min(one.share for one in found.values()) > 0.99
    assert len({name for one in found.values() for name in one.named}) <= 8


def test_every_kind_of_plan_is_among_them() -> None:
    kinds = Counter(case.kind for case in CASES)
    assert set(kinds) == set(KINDS) and min(kinds.values()) >= 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_expected_now_was_matched_then(case: Case) -> None:
    """A change of the derivation shows here without a compiler."""
    expected, one = subject_of(case.plan).expected(), read_store().found[case.name]
    assert sum(e.count for e in expected) == one.matched
    total = sum(e.count * e.nbytes for e in expected)
    assert total == pytest.approx(one.matched_bytes, rel=0.01)


def test_the_table_in_the_docs_is_the_stored_one() -> None:
    text = DOCS.read_text(encoding="utf-8")
    written = re.search(r"<!-- matched -->\n(.*?)<!-- end matched -->", text, flags=re.DOTALL)
    assert written and written[1] == table(read_store())


@needs_the_compiler
@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_the_compiler_asked_again_makes_the_same(case: Case, tmp_path: Path) -> None:
    assert found_in(ask(case, tmp_path)) == read_store().found[case.name]


@needs_the_compiler
@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_plan_compiles_to_what_is_stored(case: Case, tmp_path: Path) -> None:
    assert found_in(ask(case, tmp_path)) == read_store().found[case.name]
