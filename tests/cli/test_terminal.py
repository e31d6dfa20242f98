"""Answers on a real terminal: within its width, with colour; in a pipe as they always were."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.cli.main import main
from rooflight.ui.text.table import table

from .command import run

PLAN = "plan train llama3.2-1b --on v5e:2x2 --batch 16Ki --seq 4096"
FORECAST = "forecast llama3.2-1b --on v5e:2x2 --layout fsdp=4 --batch 16Ki --seq 4096"
FULL = (
    "fit train llama3-8b --layout fsdp=X --on v5e:4x4 --mesh X=16 --batch 128Ki --seq 4096"
    " --remat none"
)
STEPS = (
    "explain train llama3-8b --layout fsdp=X,tp=Y --on v5e:4x4 --mesh X=4,Y=4 --batch 64Ki"
    " --seq 4096 --part mlp"
)
# What the table of a page has in its header at any width.
ANSWERS = {
    PLAN: ("layout", "step"),
    FORECAST: ("fsdp=4",),
    "chips": ("chip", "16-bit FLOP/s"),
    FULL: ("component", "per chip"),
    STEPS: ("step", "time"),
}
YELLOW, RED, PLAIN = "\x1b[33m", "\x1b[31m", "\x1b[0m"


def on_a_terminal(line: str, columns: int) -> str:
    """Runs a command whose stdout is a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with (
        open(its, "w") as out,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        main(line.split())
    reader.join()
    os.close(ours)
    return b"".join(shown).decode().replace("\r\n", "\n")


def plain(page: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", page)


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("columns", (60, 80, 120))
@pytest.mark.parametrize("line", ANSWERS)
def test_no_line_is_longer_than_the_terminal_and_the_answer_is_there(
    line: str, columns: int
) -> None:
    page = plain(on_a_terminal(line, columns))
    assert max(map(len, page.splitlines())) <= columns
    lines = page.splitlines()
    heads = [head for head, rule in pairwise(lines) if re.fullmatch(r"[- ]*--", rule)]
    assert any(all(name in head for name in ANSWERS[line]) for head in heads), heads


def test_a_wide_terminal_shows_what_a_pipe_gets() -> None:
    assert plain(on_a_terminal(PLAN, 400)) == run(PLAN.split()).out


def test_a_pipe_gets_every_column_unless_columns_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(PLAN.split()).out
    assert max(map(len, whole.splitlines())) > 110 and "roofline" in whole
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run(PLAN.split()).out
    assert max(map(len, narrow.splitlines())) <= 60
    assert "(too narrow for: " in narrow and "\x1b" not in narrow


@pytest.mark.parametrize(
    "line",
    (
        "roofline --on v5e",
        "pipeline 1f1b --stages 4 --microbatches 8",
        "shard A[I_X,J_Y] --on v5e:4x4 --mesh X=4,Y=4 --dims I=64,J=64",
    ),
)
def test_a_picture_is_drawn_narrower_and_not_cut(line: str) -> None:
    drawn = [row for row in on_a_terminal(line, 60).splitlines() if re.search(r"[|+]|\.\.", row)]
    whole = [row for row in run(line.split()).out.splitlines() if re.search(r"[|+]|\.\.", row)]
    assert len(drawn) == len(whole) and max(map(len, drawn)) <= 60


def test_what_binds_and_what_does_not_fit_are_coloured() -> None:
    assert on_a_terminal(FULL, 120).startswith(f"{RED}DOES NOT FIT{PLAIN}")
    assert f"  {RED}no{PLAIN} " in on_a_terminal(FULL, 120)
    assert f"  {YELLOW}x bandwidth{PLAIN}  can run ahead" in on_a_terminal(STEPS, 120)
    assert f"{YELLOW}bound by matmuls{PLAIN}\n" in on_a_terminal(PLAN, 400)


def test_there_is_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (FULL, STEPS, PLAN):
        assert "\x1b" not in run(line.split()).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal(FULL, 120)


def test_json_is_the_same_at_any_width() -> None:
    assert on_a_terminal(f"{FULL} --json", 40) == run([*FULL.split(), "--json"]).out


_cell = st.text("ab -=,", max_size=40)


@given(
    st.integers(2, 7).flatmap(lambda n: st.lists(st.tuples(*[_cell] * n), min_size=1, max_size=4)),
    st.integers(40, 130),
)
def test_any_table_fits_and_keeps_its_two_first(rows: list[tuple[str, ...]], columns: int) -> None:
    header = [f"c{i}" for i in range(len(rows[0]))]
    keep = (header[-1], header[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        lines = table(header, rows, keep=keep).splitlines()
        patch.delenv("COLUMNS")
        whole = table(header, rows, keep=keep)
    said = lines.pop() if lines[-1].startswith("(too narrow") else ""
    assert max(map(len, lines)) <= columns
    assert set(keep) <= set(lines[0].split())
    assert [name for name in header if name not in lines[0].split()] == re.findall(r"c\d", said)
    if max(map(len, whole.splitlines())) <= columns:
        assert lines == whole.splitlines()
