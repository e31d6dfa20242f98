"""`ckpt show`: what is said of a checkpoint is what was saved; damage is a finding."""

import json
import math
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorstore  # pyright: ignore[reportMissingTypeStubs]

from rooflight.cli.main import main
from rooflight.train.checkpoint_tree import find_checkpoint, read_tree

from .launched import Launched
from .small_run import MODEL, SAVE_EVERY, small_plan, words, write_plan


def test_every_array_is_listed_with_its_split(
    undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ckpt", "show", str(undisturbed), "--on", "v5p:2x2x1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    arrays = {a["name"]: a for a in found["arrays"]}
    head = arrays["params/frame/head-W_head"]
    assert (head["shape"], head["dtype"]) == ([MODEL.d_model, MODEL.vocab], "f32")
    assert head["split"] == [["X"], []] and found["mesh"] == {"X": 4}
    assert found["bytes"] == sum(a["bytes"] for a in found["arrays"])
    assert all(a["bytes"] == 4 * math.prod(a["shape"]) for a in found["arrays"])
    # Three of each weight, and three counters that no chip shares with another.
    assert found["chip_bytes"] == pytest.approx(found["bytes"] / 4, abs=100)
    assert found["sealed"] and found["damage"] is None


def test_a_damaged_checkpoint_is_a_finding(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = max((undisturbed / "checkpoints").iterdir(), key=lambda p: int(p.name))
    copy = tmp_path / newest.name
    shutil.copytree(newest, copy)
    path = next(p for p in copy.rglob("ocdbt.process_*/d/*"))
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["ckpt", "show", str(copy)]) == 1
    assert "damaged: " in capsys.readouterr().out


def test_what_is_no_checkpoint_ends_in_one_line(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ckpt", "show", str(tmp_path)]) == 2
    assert "holds no Orbax checkpoint" in capsys.readouterr().err
    newest = max((undisturbed / "checkpoints").iterdir(), key=lambda p: int(p.name))
    rng = random.Random(0)
    for number in range(40):
        copy = tmp_path / str(number)
        shutil.copytree(newest / "state", copy)
        path = rng.choice(sorted(p for p in copy.rglob("*") if p.is_file()))
        data = bytearray(path.read_bytes())
        for _ in range(8):
            if data:
                data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        path.write_bytes(data[: rng.randrange(len(data) + 1)])
        assert main(["ckpt", "show", str(copy)]) in (0, 2)
        assert "internal" not in capsys.readouterr().err


def _restore(folder: Path, plan: Path, *words: str) -> dict[str, Any]:
    command = ["ckpt", "restore", str(folder), "--plan", str(plan), *words, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "rooflight", *command], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    said = "of a host's memory while it restores"
    assert said in done.stderr  # before it begins
    return json.loads(done.stdout)


DEEP = replace(MODEL, layers=(replace(MODEL.layers[0], times=4),))


@pytest.fixture
def deep(tokens: Path, tmp_path: Path) -> Path:
    """The folder of a short run of a model with two layers for each of two stages."""
    run = Launched(words(tmp_path, tokens, 1, steps=SAVE_EVERY, model=DEEP), tmp_path / "run")
    run.start()
    assert run.end() == 0, run.talk()
    run.close()
    return run.out


def test_a_checkpoint_goes_to_stages_and_back_bit_for_bit(deep: Path, tmp_path: Path) -> None:
    changes = {
        "model": DEEP,
        "schedule": "interleaved",
        "stages": 2,
        "microbatches": 4,
        "virtual": 2,
    }
    staged = small_plan("fsdp=X,pp=P", "X=2,P=2", "v5e:2x2", **changes)
    there = write_plan(tmp_path / "there.json", staged)
    back = write_plan(tmp_path / "back.json", small_plan("fsdp=X", "X=4", "v5e:2x2", model=DEEP))
    found = _restore(deep, there, "--out", str(tmp_path / "staged"))
    tree = read_tree(deep)
    assert found["state_bytes"] == pytest.approx(tree.nbytes, rel=0.01)
    assert found["restored_step"] == int(find_checkpoint(deep).parent.name)
    assert found["restacked_bytes"] > 0
    # Four chips are one host here, and stages share the frame of the model.
    assert tree.nbytes <= found["host_bytes"] < found["peak_bytes"] < 5 * tree.nbytes
    repeated = _restore(tmp_path / "staged", back, "--out", str(tmp_path / "again"))
    assert repeated["restored_step"] == found["restored_step"]
    assert _arrays(deep) == _arrays(tmp_path / "again")
    assert read_tree(tmp_path / "staged").axes == {"X": 2, "P": 2}
    assert _arrays(deep) != _arrays(tmp_path / "staged")  # layers 0 and 2, then 1 and 3


def _arrays(folder: Path) -> dict[str, bytes]:
    """Every array of a checkpoint, read without any of our code but the names."""
    home = find_checkpoint(folder).resolve()
    found: dict[str, bytes] = {}
    for array in read_tree(folder).arrays:
        kvstore = {"driver": "ocdbt", "base": f"file://{home}/", "path": f"{array.name}/"}
        store = tensorstore.open({"driver": "zarr", "kvstore": kvstore}).result()
        found[array.name] = store.read().result().tobytes()
    return found


def test_memory_is_told_for_a_slice_that_is_not_here(undisturbed: Path, tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=16", "v5e:4x4"))
    found = _restore(undisturbed, plan)
    whole = read_tree(undisturbed).nbytes
    assert found["restored_step"] is None and found["restacked_bytes"] == 0
    assert found["chip_bytes"] == pytest.approx(whole / 16, rel=0.02)
    assert found["host_bytes"] == found["chip_bytes"] * found["host_chips"]


def test_data_that_is_elsewhere_is_named(
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    text = (run / "run.json").read_text()
    told = json.loads(text)["data"]
    (run / "run.json").write_text(text.replace(json.dumps(told), '"elsewhere"'))
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=4", "v5e:2x2"))
    assert main(["ckpt", "restore", str(run), "--plan", str(plan)]) == 2
    assert "elsewhere" in capsys.readouterr().err


def test_another_runs_state_is_refused(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(small_plan("fsdp=X", "X=4", "v5e:2x2"), batch=32)
    plan = write_plan(tmp_path / "plan.json", other)
    assert main(["ckpt", "restore", str(undisturbed), "--plan", str(plan)]) == 2
    assert "is of another run" in capsys.readouterr().err
