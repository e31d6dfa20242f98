"""The frame: verbs, flags, exit codes, and what happens when things go wrong."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from rooflight import __version__
from rooflight.cli import main as frame
from rooflight.cli.measuring import measure as command_of_measure
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.verbs import OVERVIEW, VERBS, load_verb, respelt, verb_names, verb_parser
from rooflight.plan.file.record import SCHEMA

from .command import Outcome, run

COMMAND = (sys.executable, "-c", "from rooflight.cli.main import entry; entry()")

# A wrong command line, and the word that makes it right.
MISSPELT = {
    "chip": ("chip", "chips"),
    "chips --tolm v5e": ("--tolm", "--toml"),
    "chips v5ee": ("v5ee", "v5e"),
    "slice v5q:4x4x4": ("v5q", "v5p"),
    "slice v5e:4x4 --mehs X=4,Y=4": ("--mehs", "--mesh"),
    "roofline --on v5e --dtype bf6": ("bf6", "bf16"),
    "roofline --on v5e --memory vmm": ("vmm", "vmem"),
    "roofline --onn v5e": ("--onn", "--on"),
    "collective all-gater --bytes 1MB --on v5e:4x4": ("all-gater", "all-gather"),
    "collective all-gather --byte 1MB --on v5e:4x4": ("--byte", "--bytes"),
    "completion bsh": ("bsh", "bash"),
}

WRONG = (
    "--json",
    "--verbose chips",
    "chips v5e extra",
    "chips --toml",
    "chips v5e --toml=yes",
    "slice",
    "slice v5e:4x4 --mesh",
    "slice v5e:4x4x4",
    "slice v5e:0x4",
    "slice v5e:4x4 --mesh X=3",
    "roofline",
    "roofline --on v5e --matmul 3x4",
    "roofline --on v5e --matmul 0x4x4",
    "roofline --on this-host",
    "roofline --on v5e --plot no/such/folder/plot.svg",
    "collective",
    "collective all-gather --on v5e:4x4",
    "collective all-gather --bytes 1.5 --on v5e:4x4",
    "collective all-gather --bytes 1MB --on v5e:4x4 --axes Q",
    "collective all-gather --bytes 1MB --on v5e:4x4 --axes XX",
    "collective all-reduce --bytes 1MB --on v5e:4x4 --in-network-reduction",
    "completion",
    "matmul 'A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]' --on v5e --dims I=8,J=8,K=8",  # no axis Y
)


def commands_in(text: str) -> list[str]:
    """Commands that a text tells the user to run."""
    return re.findall(r"`(rooflight [^`]+)`", text) + re.findall(r"^next: (.+)$", text, re.M)


def foreign_files(folder: Path) -> dict[Path, tuple[str, float]]:
    """Old files of a user with names like ours, and what each is: a verb may change none."""
    names = ("thesis/a.txt", "compiled/run.json", "work-1/summary.json", "run/events.jsonl")
    names += (f"{'0' * 31}x/summary.json", "plan.json", "checkpoints/10/state", ".hidden")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("somebody's own")
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    return state_of(folder)


def state_of(folder: Path) -> dict[Path, tuple[str, float]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_text(errors="replace"), path.stat().st_mtime) for path in files}


@pytest.fixture(autouse=True, scope="module")
def measured_once() -> Iterator[None]:
    """The first command that asks measures this machine for real; the next prints the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_of_measure, "measure", cache(command_of_measure.measure))
        yield


@pytest.mark.parametrize("verb", verb_names())
def test_the_help_of_every_verb_lists_json_and_examples_that_run(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of somebody's files, which is the cache as well: none of them changes."""
    before = foreign_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    shown = run([*verb.split(), "--help"])
    assert shown.code == 0 and "--json" in shown.out
    examples = verb_parser(verb, load_verb(verb)).examples
    assert examples
    for example in examples:
        assert example in shown.out
        outcome = run(shlex.split(example)[1:])
        assert outcome.code == 0, outcome.err
    assert state_of(tmp_path).items() >= before.items()


@pytest.mark.parametrize("verb", verb_names())
def test_json_of_every_first_example_is_one_versioned_document(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = shlex.split(verb_parser(verb, load_verb(verb)).examples[0])[1:]
    outcome = run([*example, "--json"])
    document = json.loads(outcome.out)
    schema = SCHEMA if verb == "plan train" else 2
    assert (document["schema"], document["verb"], outcome.err) == (schema, verb.split()[0], "")


@pytest.mark.parametrize("line", MISSPELT)
def test_a_misspelt_word_is_refused_with_a_suggestion_that_works(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong, right = MISSPELT[line]
    outcome = run(line.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert f"`{right}`" in outcome.err.partition("hint: did you mean ")[2]
    assert run(line.replace(wrong, right).split()).code == 0


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_request_exits_2_with_an_error_a_hint_and_no_output(line: str) -> None:
    outcome = run(shlex.split(line))
    assert (outcome.code, outcome.out) == (2, "")
    assert re.fullmatch(r"error: .+\n\nhint: .+\n", outcome.err, re.S)
    for command in commands_in(outcome.err.partition("hint: ")[2]):
        assert run(shlex.split(command)[1:]).code == 0, command


@pytest.mark.parametrize(
    "line",
    (
        "chips",
        "chips v100",
        "chips this-host",
        "slice v5p:16x20x28",
        "slice 2*v5e:16x16 --mesh X=8,Y=64",
        "slice v5e",
        "slice h100:8x4",
        "roofline --on v100",
        "collective all-to-all --bytes 1MB --on v5e:2x2",
    ),
)
def test_what_is_suggested_next_runs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(line.split())
    assert outcome.code == 0
    for command in commands_in(outcome.err):
        assert run(shlex.split(command)[1:]).code == 0, command


def test_no_words_at_all_print_the_overview() -> None:
    assert run([]).out == run(["--help"]).out == run(["-h"]).out


def test_the_overview_names_each_verb_once_in_groups_on_one_screen() -> None:
    """Every module with a `configure` is a verb, and each is listed."""
    lines = run([]).out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert all(any(line.startswith(f"{group} ") for line in lines) for group in OVERVIEW)
    named = [
        re.sub(r"[^a-z]", "", word) for line in lines[2:-2] for word in line[10:32].split(", ")
    ]
    assert sorted(word.removesuffix("trainserve") for word in named) == sorted(VERBS)
    modules = Path(frame.__file__).parent.rglob("*.py")
    verbs = [path.stem for path in modules if "\ndef configure(" in path.read_text()]
    assert sorted(verb.split()[0] for verb in verb_names()) == sorted(
        stem.removesuffix("_serve") for stem in verbs
    )


@pytest.mark.parametrize("verb", ("plan", "fit", "explain"))
def test_training_and_serving_are_second_words(verb: str) -> None:
    for words in ([verb, "--help"], [verb, "-h"]):
        shown = run(words).out
        assert f"rooflight {verb} train " in shown and f"rooflight {verb} serve " in shown
    assert run([verb]).code == 2 and f"`rooflight {verb} serve --help`" in run([verb]).err


@pytest.mark.parametrize(
    ("old", "new", "options"),
    (
        ("fit M --serve", "fit serve M", "--layout tp=4 --sequences 8"),
        ("explain M --serve generate", "explain serve M", "--layout tp=4"),
        ("explain M --serve=prefill", "explain serve M --phase prefill", "--layout tp=4"),
        ("fit M", "fit train M", "--layout fsdp=X --mesh X=4 --batch 64Ki"),
        ("explain M", "explain train M", "--layout dp=X --mesh X=4 --batch 64Ki"),
        ("plan --batch 64Ki train M", "plan train M --batch 64Ki", "--rank roofline"),
    ),
)
def test_an_old_spelling_answers_as_the_new_one_does_and_notes_it(
    old: str, new: str, options: str
) -> None:
    question = f"llama3.2-1b --on v5e:2x2 --seq 2048 {options}"
    before, now = (run(line.replace("M", question, 1).split()) for line in (old, new))
    assert (before.code, before.out) == (now.code, now.out) and now.code in (0, 1)
    words = " ".join(new.split()[:2])
    assert before.err == f"{now.err}note: write `rooflight {words} ...`; 0.2 asks for the word\n"


@pytest.mark.parametrize(
    ("old", "new"),
    (
        (["simulate", "--policy", "separated"], ["simulate", "--policy", "disaggregated"]),
        (["plan", "serve", "--policy=separated"], ["plan", "serve", "--policy=disaggregated"]),
        (["frontier", "--bound", "products"], ["frontier", "--bound", "matmuls"]),
        (["serve", "m", "--drafts=4"], ["serve", "m", "--draft-tokens=4"]),
        (["serve", "m", "--patience", "9s"], ["serve", "m", "--step-timeout", "9s"]),
        (["launch", "--start-patience", "9s"], ["launch", "--start-timeout", "9s"]),
    ),
)
def test_an_old_word_is_read_as_the_new_one_and_noted(old: list[str], new: list[str]) -> None:
    found, note = respelt(old)
    assert found == new and note.startswith("note: `") and "0.2 says `" in note
    assert respelt(new) == (new, "")
    assert respelt(["serve", "separated"]) == (["serve", "separated"], "")  # a folder's name


def test_the_overview_starts_with_a_command_that_runs() -> None:
    command = run([]).out.partition("start with: ")[2]
    assert run(command.split()[1:]).code == 0


def test_version() -> None:
    assert run(["--version"]).out == f"rooflight {__version__}\n"


def test_help_is_the_answer_even_where_required_words_are_missing() -> None:
    assert run(["collective", "--bytes", "-h"]).code == 0


@dataclass(frozen=True, slots=True)
class _FailingVerb:
    error: BaseException
    HELP: str = "fails"

    def configure(self, parser: Parser) -> None:
        """Has no flags of its own."""

    def run(self, args: Namespace) -> int:
        raise self.error


def _failing_verb(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(name: str) -> _FailingVerb:
        return _FailingVerb(error)

    monkeypatch.setattr(frame, "load_verb", load)


def test_a_bug_of_ours_ends_in_words_and_exit_70(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROOFLIGHT_DEBUG", raising=False)
    _failing_verb(monkeypatch, KeyError("x"))
    outcome = run(["chips"])
    assert (outcome.code, outcome.out) == (70, "")
    assert outcome.err.startswith("error: internal KeyError: 'x'\n\nhint: ")
    assert "ROOFLIGHT_DEBUG=1" in outcome.err and "Traceback" not in outcome.err


def test_debugging_shows_the_traceback_of_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLIGHT_DEBUG", "1")
    _failing_verb(monkeypatch, KeyError("x"))
    assert "Traceback" in run(["chips"]).err


def test_an_interrupt_exits_130_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    _failing_verb(monkeypatch, KeyboardInterrupt())
    assert run(["chips"]) == Outcome(130, "", "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [*COMMAND, "chips", "v5p"], stdout=write_end, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_go_to_stderr_and_data_to_stdout_of_the_real_command() -> None:
    good = subprocess.run([*COMMAND, "slice", "v5e:4x4", "--json"], capture_output=True, text=True)
    assert json.loads(good.stdout)["num_chips"] == 16 and good.stderr == ""
    bad = subprocess.run([*COMMAND, "slice", "nope"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (2, "") and bad.stderr.startswith("error: ")
