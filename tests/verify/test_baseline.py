"""A verdict against an earlier one: what was added fails, what got better does not."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.compile.findings.baseline import compare, read_baseline
from rooflight.errors import UsageError

KINDS = ("all_gather", "all_reduce", "permute")


def _row(kind: str, axes: str, nbytes: int, count: int | None, line: int = 1) -> dict[str, Any]:
    source = f"model.py:{line}"
    facts = {"kind": kind, "axes": list(axes), "nbytes": nbytes, "count": count}
    return facts | {"source": source, "seconds": nbytes * (count or 1) / 1e9}


def _verdict(*rows: dict[str, Any], memory: int | None = None) -> dict[str, Any]:
    kept = {"compiler_bytes": memory}
    return {"verb": "verify", "slice": "v5e:4x4", "collectives": list(rows), "memory": kept}


GATHER = _row("all_gather", "X", 10**6, 8, line=10)


def test_a_new_collective_is_named_with_its_line_times_and_bytes() -> None:
    new = _row("all_to_all", "Y", 2 * 10**6, 4, line=33)
    (finding,) = compare(_verdict(GATHER), _verdict(GATHER, new)).added
    assert finding.where == "model.py:33" and finding.nbytes == 8 * 10**6
    assert finding.seconds == pytest.approx(8e-3)
    assert finding.words.startswith("all-to-all over Y: 4 times per step instead of 0, 8 MB")


def test_more_times_and_more_bytes_of_a_known_collective_are_added() -> None:
    more = compare(_verdict(GATHER), _verdict(_row("all_gather", "X", 10**6, 9))).added
    wider = compare(_verdict(GATHER), _verdict(_row("all_gather", "X", 2 * 10**6, 8, 12))).added
    assert len(more) == len(wider) == 1 and wider[0].where == "model.py:12"


def test_a_moved_line_is_no_change() -> None:
    moved = GATHER | {"source": "model.py:99"}
    found = compare(_verdict(GATHER), _verdict(moved))
    assert found.added == () and found.better == ()


def test_fewer_bytes_are_better_and_no_failure() -> None:
    found = compare(_verdict(GATHER), _verdict(_row("all_gather", "X", 5 * 10**5, 8)))
    assert found.added == ()
    assert found.better == ("all-gather over X: 8 -> 8 times, 8 MB -> 4 MB per step",)


def test_less_than_one_percent_is_neither_added_nor_better() -> None:
    before, after = _verdict(GATHER), _verdict(_row("all_gather", "X", 10**6 - 5000, 8))
    for one, other in ((before, after), (after, before)):
        found = compare(one, other)
        assert found.added == () and found.better == ()


def test_one_more_scalar_is_nobodys_finding() -> None:
    found = compare(_verdict(GATHER), _verdict(GATHER, _row("all_reduce", "X", 4, 1)))
    assert found.added == () and found.better == ()


def test_a_gigabyte_fails_and_less_does_not() -> None:
    before = _verdict(GATHER, memory=10**10)
    (finding,) = compare(before, _verdict(GATHER, memory=11 * 10**9)).added
    assert finding.kind == "added_memory" and finding.nbytes == 10**9
    assert compare(before, _verdict(GATHER, memory=11 * 10**9 - 1)).added == ()
    assert compare(before, _verdict(GATHER)).added == ()  # not asked for: unknown
    assert compare(before, _verdict(memory=8 * 10**9)).better[-1] == "2 GB less memory per device"


rows = st.lists(
    st.builds(
        _row,
        st.sampled_from(KINDS),
        st.sampled_from(("X", "Y", "XY")),
        st.integers(1, 10**9),
        st.one_of(st.none(), st.integers(1, 100)),
        st.integers(1, 50),
    ),
    max_size=6,
)


@given(rows)
def test_a_verdict_adds_nothing_to_itself(found: list[dict[str, Any]]) -> None:
    same = compare(_verdict(*found), _verdict(*found))
    assert same.added == () and same.better == ()


@given(rows, rows)
def test_what_is_added_one_way_is_never_only_added_the_other(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    there = compare(_verdict(*one), _verdict(*other))
    back = compare(_verdict(*other), _verdict(*one))
    assert {f.words.partition(":")[0] for f in there.added}.isdisjoint(
        text.partition(":")[0] for text in there.better
    )
    assert len(there.better) <= len(back.added)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"verb": "plan"}', json.dumps(_verdict({"kind": "all_gather"}))],
)
def test_what_is_no_verdict_is_refused_with_a_command(text: str, tmp_path: Path) -> None:
    file = tmp_path / "verify.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"baseline|no verdict"):
        read_baseline(str(file))


def test_verdicts_of_two_slices_are_not_compared() -> None:
    with pytest.raises(UsageError, match="v5e:4x4"):
        compare(_verdict(), _verdict() | {"slice": "v5p:4x4x4"})
