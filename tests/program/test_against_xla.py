"""The chosen steps are those of XLA's partitioner, or the docs explain the difference."""

import importlib.util
from collections import Counter

import pytest
from xla_cases import cases
from xla_collectives import Collective, collectives
from xla_report import DOC, Comparison, compare, generated, report, versions

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)


@pytest.fixture(scope="module")
def found() -> list[Comparison]:
    return compare()


def test_there_are_two_hundred_distinct_cases() -> None:
    every = cases()
    assert len({c.text for c in every}) == len(every) >= 200


@needs_libtpu
def test_the_chosen_steps_are_those_of_xla_in_nine_cases_of_ten(found: list[Comparison]) -> None:
    talk = [c for c in found if c.communicates]
    assert len(talk) >= 200
    for some in (found, talk):
        assert sum(c.is_equal for c in some) >= 0.9 * len(some)


@needs_libtpu
def test_every_class_of_difference_is_explained_in_the_docs(found: list[Comparison]) -> None:
    text = DOC.read_text()
    classes = {c.difference for c in found if not c.is_equal}
    assert {name for name in classes if f"\n### {name}\n" not in text} == set()


@needs_libtpu
def test_the_tables_of_the_docs_are_what_the_report_says(found: list[Comparison]) -> None:
    tables = generated(DOC.read_text())
    if not tables.startswith(versions()):
        pytest.skip("the docs were written with another version of the compiler")
    assert tables == report(found), "run `python tests/program/xla_report.py --write`"


def hlo(*lines: str) -> str:
    body = "\n".join(f"  %{line}" for line in lines)
    return f"HloModule m\n\nENTRY %main (p: bf16[64]) -> bf16[64] {{\n{body}\n}}\n"


P0, P1 = "p0 = bf16[64]{0} parameter(0)", "p1 = bf16[64]{0} parameter(1)"
AXES = {"X": 4, "Y": 4}


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", ("Y",)),
        ("{{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}", ("X",)),
        ("[4,4]<=[16]", ("Y",)),
        ("[4,4]<=[4,4]T(1,0)", ("X",)),
        ("[1,16]<=[16]", ("X", "Y")),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=4] {'axis_2'}", ("Y",)),
        ("mesh['axis_0'=4,'axis_1'=4], device_ids=([4,4]T(1,0)) {'axis_1'}", ("X",)),
        ("mesh['axis_0'=1,'axis_1'=16] {'axis_1'}", ("X", "Y")),
    ],
)
def test_replica_groups_are_read_in_every_notation(groups: str, axes: tuple[str, ...]) -> None:
    gather = f"g = bf16[256]{{0}} all-gather(%p0), replica_groups={groups}, dimensions={{0}}"
    assert collectives(hlo(P0, P1, gather), AXES) == [
        Counter([Collective("all_gather", axes, 512)])
    ]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            "0, 0, 0, 0, 16, 16, 16, 16, 32, 32, 32, 32, 48, 48, 48, 48",
            [("reduce_scatter", "X", 128)],
        ),
        ("0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48", [("all_reduce", "X", 128)]),
    ],
)
def test_an_all_reduce_is_a_reduce_scatter_only_over_the_axes_of_its_slice(
    table: str, expected: list[tuple[str, str, int]]
) -> None:
    text = hlo(
        P0,
        P1,
        "r = bf16[64]{0} all-reduce(%p0), replica_groups=[4,4]<=[4,4]T(1,0), to_apply=%add",
        f"t = s32[16]{{0}} constant({{{table}}})",
        "i = u32[] partition-id()",
        "d = s32[1]{0} dynamic-slice(%t, %i), dynamic_slice_sizes={1}",
        "o = s32[] reshape(%d)",
        "s = bf16[16]{0} dynamic-slice(%r, %o), dynamic_slice_sizes={16}",
    )
    wanted = Counter(Collective(kind, tuple(axes), n) for kind, axes, n in expected)
    assert collectives(text, AXES) == [wanted]


def test_an_unknown_instruction_is_refused() -> None:
    loop = "w = bf16[64]{0} ragged-all-to-all(%p0), replica_groups=[4,4]<=[16]"
    with pytest.raises(AssertionError, match="ragged-all-to-all"):
        collectives(hlo(P0, P1, loop), AXES)
