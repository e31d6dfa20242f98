"""A checkpoint goes to another mesh, another layout and other stages bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..dated_figure import today, write_figure

_WORKER = Path(__file__).with_name("restore_worker.py")
_MEMORY = Path(__file__).with_name("restore_memory_worker.py")
_LAYOUTS = (
    *("fsdp=X@X=8", "fsdp=X@X=4", "fsdp=X@X=16", "tp=Y@Y=2", "dp=Z,fsdp=X@Z=2,X=4"),
    *("pp=P@P=2@1f1b", "fsdp=X,pp=P@X=4,P=4@1f1b"),
)
_FROM_STAGES = (_LAYOUTS[2], *_LAYOUTS[-2:])  # to more devices without any, to fewer, to the same


@pytest.mark.parametrize(
    ("first", "others"),
    [
        (_LAYOUTS[0], _LAYOUTS),
        (_LAYOUTS[-1], _FROM_STAGES),
        *(pytest.param(first, _LAYOUTS, marks=pytest.mark.full) for first in _LAYOUTS[1:]),
    ],
)
def test_a_state_is_the_same_on_every_mesh(
    tmp_path: Path, first: str, others: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, str(_WORKER), str(tmp_path), first, *others],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *found, other = [json.loads(line) for line in done.stdout.splitlines()]
    assert "is of another run" in other["other"]
    assert [f["layout"] for f in found] == [*others]
    assert all(f["same"] and f["placed"] for f in found), found


@pytest.mark.full
def test_restoring_takes_little_more_memory_than_what_is_restored(tmp_path: Path) -> None:
    def worker(what: str, layout: str) -> str:
        command = [sys.executable, str(_MEMORY), str(tmp_path), what, layout]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    worker("save", "fsdp=X@X=4")
    ratios: dict[str, float] = {}
    for layout in ("fsdp=X@X=4", "fsdp=X,tp=Y@X=2,Y=2"):
        found = json.loads(worker("restore", layout))
        assert found["nbytes"] > 10**9
        ratios[layout.partition("@")[0]] = found["peak"] / found["nbytes"]
    told = ", ".join(f"{ratio:.2f} times as {layout}" for layout, ratio in ratios.items())
    write_figure(
        "train.md",
        "restore",
        f"{today()}: restoring {found['nbytes'] / 1e9:.2f} GB saved as fsdp=X takes at its"
        f" peak {told} of that memory.",
    )
    assert max(ratios.values()) <= 1.5
