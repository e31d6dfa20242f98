"""Notes which files of this tree a process reads: what a full size depends on.

`./check --full` has this folder on PYTHONPATH, so every Python that a test starts runs it first. A
line for each file, one with `/` at its end for a folder that was listed, `*` for a call of git.
"""

import os
import sys
from collections.abc import Sequence
from typing import cast

_TREE, _LOG = os.environ.get("ROOFLIGHT_READS_OF"), os.environ.get("ROOFLIGHT_READS")
_noted: set[str] = set()


def _note(event: str, found: tuple[object, ...]) -> None:
    if event == "open":
        _add(found[0])
    elif event in ("os.listdir", "os.scandir"):
        _add(found[0] or ".", "/")
    elif event == "subprocess.Popen" and isinstance(found[1], list | tuple):
        program, *words = cast(Sequence[object], found[1])
        for word in words:  # a compiler reads what it is told to
            _add(word)
        if str(program).rpartition("/")[2] == "git":
            _write("*")


def _add(path: object, end: str = "") -> None:
    if isinstance(path, str | bytes | os.PathLike):
        whole = os.path.abspath(os.fsdecode(cast(str, path)))
        if whole.startswith(f"{_TREE}/"):
            _write(whole[len(f"{_TREE}/") :] + end)


def _write(line: str) -> None:
    assert _LOG
    if line not in _noted:
        _noted.add(line)
        log = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, f"{line}\n".encode())
        os.close(log)


if _TREE and _LOG:
    sys.addaudithook(_note)
