"""`rooflight pipeline`: the answer first, the table of all schedules, JSON, and what is refused."""

import json
import shlex
from pathlib import Path

import pytest

from .command import run

SIZES = "--stages 4 --microbatches 8"


def answer(command: str) -> str:
    outcome = run(["pipeline", *shlex.split(command)])
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_the_first_line_is_the_answer() -> None:
    assert answer(f"1f1b {SIZES}").split("\n")[0] == (
        "1f1b, 4 stages, 8 microbatches: bubble 27.3% of the step (9 of 33),"
        " activations of 4 microbatches on device 0"
    )


def test_compare_lists_every_schedule_and_says_why_one_cannot_be() -> None:
    text = answer("1f1b --stages 3 --microbatches 8 --compare")
    rows = [line.split()[0] for line in text.split("\n\n")[-1].split("\n")[2:7]]
    assert rows == ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
    assert text.endswith("dualpipe needs an even number of stages, not 3\n")


def test_json_has_the_table_with_its_times() -> None:
    found = json.loads(answer(f"dualpipe {SIZES} --times 1,1,1 --joined 2.5 --compare --json"))
    assert found["peak_activations"] == [5.0] * 4 and found["weight_copies"] == 2
    assert found["times"]["joined"] == 2.5
    assert sum(len(slots) for slots in found["devices"]) >= 2 * 4 * 8
    assert any(slot["joined"] for slots in found["devices"] for slot in slots)
    assert set(found["compare"]) == {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"}


def test_the_plot_is_written_and_the_suggested_command_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(
        ["pipeline", "interleaved", *SIZES.split(), "--virtual", "3", "--transfer", "0.1"]
    )
    suggested = outcome.err.removeprefix("next: rooflight ").strip()
    assert "--virtual 3" in suggested and "--transfer 0.1" in suggested
    assert run(shlex.split(suggested)).code == 0
    assert (tmp_path / "gantt.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("1f1b --stages 4", "--microbatches"),
        ("1f1b --stages 0 --microbatches 8", "--stages 0 leaves nothing"),
        ("1f1b --stages 1k --microbatches 1k", "too many to simulate"),
        (f"1f1b {SIZES} --times 1,1", "not F,B,W"),
        (f"1f1b {SIZES} --times 1,1,nan", "'nan' is not a time"),
        (f"1f1b {SIZES} --times 0,0,0", "times of a slot cannot be"),
        (f"1f1b {SIZES} --transfer=-1", "'-1' is not a time"),
        (f"1f1b {SIZES} --virtual 2", "1 virtual stage per device"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(command: str, complaint: str) -> None:
    outcome = run(["pipeline", *shlex.split(command)])
    assert outcome.code == 2 and outcome.out == ""
    assert complaint in outcome.err and "hint: " in outcome.err
