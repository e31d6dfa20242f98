"""Completion, asked of the function and of real shells."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rooflight.cli.learning.completion import candidates
from rooflight.cli.verbs import VERBS
from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import chip_names

from .command import run

# A fork of this process would have the threads of jax, if another test has imported it.
ON_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def shell_env(tmp_path: Path) -> dict[str, str]:
    """An environment in which `rooflight` is the command under test."""
    command = tmp_path / "rooflight"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rooflight "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def test_the_first_word_is_a_verb_or_a_flag_of_the_frame() -> None:
    assert candidates([""]) == candidates([]) == [*VERBS, "--help", "--version"]


@pytest.mark.parametrize(
    ("words", "expected"),
    (
        (["chips", ""], list(chip_names())),
        (["roofline", "--on", ""], list(chip_names())),
        (["roofline", "--on=v6"], ["--on=v6e"]),
        (["roofline", "--dtype", ""], list(DTYPES)),
        (["roofline", "--dtype", "nv"], ["nvfp4"]),
        (["roofline", "--on", "v5e", "--mem"], ["--memory"]),
        (["roofline", "--on", "v5e", "--pad", ""], []),
        (["collective", "all-g"], ["all-gather"]),
        (["collective", "--bytes", "3", "all-g"], ["all-gather"]),
        (["collective", "all-gather", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["slice", "v5p:4x4x4", "--m"], ["--mesh"]),
        (["roofline", "--plot", ""], []),
        (["plan", ""], ["train", "serve", "--help"]),
        (["fit", "serve", "--ph"], []),
        (["explain", "serve", "--phase", "p"], ["prefill"]),
        (["nonsense", ""], []),
    ),
)
def test_candidates_follow_the_parsers_and_the_catalog(
    words: list[str], expected: list[str]
) -> None:
    assert candidates(words) == expected


def test_the_frame_answers_the_script_one_candidate_a_line() -> None:
    assert run(["--complete-words", "co"]).out == "collective\ncontribute\ncompletion\n"


def _press_tab(shell: list[str], env: dict[str, str], setup: str, typed: str) -> str:
    """Types into a real interactive shell on a terminal; returns what it showed."""
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *shell],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
        env={**env, "PS1": "> ", "TERM": "dumb"},
    )
    os.close(its_end)
    shown = ""
    try:
        for text, until in ((f"{setup}; echo READ''Y\n", "READY"), (typed, "DONE")):
            os.write(terminal, text.encode())
            deadline = time.monotonic() + 300
            while until not in shown and time.monotonic() < deadline:
                if select.select([terminal], [], [], 0.2)[0]:
                    shown += os.read(terminal, 4096).decode(errors="replace")
    finally:
        os.close(terminal)
        process.wait()
    return shown


@pytest.mark.parametrize(
    ("typed", "expected"),
    (
        ("rooflight coll\t--help", "usage: rooflight collective"),
        ("rooflight slice v6\t", "v6e:1x1: 1 chip"),
        ("rooflight roofline --on=v6\t --json", '"chip": "v6e"'),
        ("rooflight roofline --on v6e --dt\tint8 --json", '"dtype": "int8"'),
    ),
)
def test_the_tab_key_completes_in_a_real_bash(
    typed: str, expected: str, shell_env: dict[str, str]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    setup = 'eval "$(rooflight completion bash)"'
    shown = _press_tab([bash, "--norc", "-i"], shell_env, setup, f"{typed}; echo DO''NE; exit\n")
    assert expected in shown, shown


def _ask_bash(env: dict[str, str], line: str) -> list[str]:
    words = line.split(" ")
    script = f"""
        eval "$(rooflight completion bash)"
        COMP_LINE={line!r} COMP_POINT={len(line)} COMP_CWORD={len(words) - 1}
        COMP_WORDS=({" ".join(repr(word) for word in words)})
        _rooflight
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_bash_function_offers_verbs_and_chips(shell_env: dict[str, str]) -> None:
    assert _ask_bash(shell_env, "rooflight ") == [*VERBS, "--help", "--version"]
    assert _ask_bash(shell_env, "rooflight chips v5") == ["v5e", "v5p"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_verbs_and_chips(shell_env: dict[str, str]) -> None:
    def ask(line: str) -> list[str]:
        script = f"rooflight completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script], env=shell_env, capture_output=True, text=True
        )
        return done.stdout.split()

    assert ask("rooflight coll") == ["collective"]
    assert ask("rooflight roofline --on v5") == ["v5e", "v5p"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_the_tab_key_completes_in_a_real_zsh(shell_env: dict[str, str]) -> None:
    setup = 'autoload -Uz compinit; compinit -u -D; eval "$(rooflight completion zsh)"'
    typed = "rooflight roofline --on v6\t --json; echo DO''NE; exit\n"
    shown = _press_tab(["zsh", "-f", "-i"], shell_env, setup, typed)
    assert '"chip": "v6e"' in shown, shown
