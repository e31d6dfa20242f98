"""The verbs that look at what a compiler wrote, and at what this machine can compile for."""

import json
from pathlib import Path

import pytest

from rooflight.compile.hlo.dump import EXAMPLE

from .command import run

DUMPS = Path(__file__).parents[1] / "verify" / "dumps"


def test_a_folder_is_shown_as_tables() -> None:
    outcome = run(["hlo", str(DUMPS / "fsdp")])
    assert outcome.code == 0 and outcome.err == ""
    first = outcome.out.splitlines()[0]
    assert first.startswith(
        "jit_loss, executable, one of 16 devices: 361 GFLOP of matmuls per step"
    )
    for words in ("reduce-scatter  X ", "while.32", "at the peak", "est. cycles", "programs.py:"):
        assert words in outcome.out


def test_the_example_that_ships_is_the_dump_of_the_tests() -> None:
    (text,) = (DUMPS / "fsdp-partitioned").glob("module*.txt")
    assert EXAMPLE.read_text() == text.read_text()
    assert "all-gather      X " in run(["hlo", "--mesh", "X=16,Y=4"]).out


def test_axes_without_names_are_counted_and_a_mesh_names_them() -> None:
    (text,) = (DUMPS / "psum").glob("*codegen.txt")
    copy = text.read_text()
    lone = Path("lone.txt")
    lone.write_text(copy)
    assert "4 devices" in run(["hlo", str(lone)]).out
    assert "all-reduce  rows" in run(["hlo", str(lone), "--mesh", "rows=4,cols=4"]).out


def test_the_document_has_everything() -> None:
    outcome = run(["hlo", str(DUMPS / "scan"), "--json"])
    found = json.loads(outcome.out)
    assert {c["kind"]: c["count"] for c in found["collectives"]} == {"permute": 15, "all_to_all": 3}
    assert found["memory"]["total_bytes"] > 0 and len(found["loops"]) == 2


def test_one_op_is_explained_in_words() -> None:
    outcome = run(["hlo", str(DUMPS / "psum"), "--op", "psum_invariant.7"])
    assert "It is an all-reduce over X of 4.19 MB (sync)." in outcome.out
    assert "tiles of 8x128, none padded" in outcome.out and "Fed by param" in outcome.out
    assert "programs.py:" in outcome.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-folder"], "there is no file or folder"),
        ([str(DUMPS)], "holds no HLO text"),
        ([str(DUMPS / "psum"), "--op", "nothing.1"], "unknown op 'nothing.1'"),
        ([str(DUMPS / "psum"), "--module", "jit_other"], "unknown module 'jit_other'"),
        ([str(Path(__file__))], "HLO text, line"),
    ],
)
def test_what_cannot_be_read_ends_in_one_line(words: list[str], message: str) -> None:
    outcome = run(["hlo", *words])
    assert outcome.code == 2 and message in outcome.err and "hint: " in outcome.err


def test_doctor_says_what_this_machine_can_do_and_how_to_get_the_rest() -> None:
    outcome = run(["doctor"])
    assert outcome.code == 0 and outcome.out.startswith("This machine can ")
    document = json.loads(run(["doctor", "--json"]).out)
    for part in document["parts"].values():
        assert part["version"] or "pip install" in part["how_to_get_it"] or "Linux" in str(part)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(tmp_path)
