"""What a run tells beside its losses, which stay as they were; and data that no step reads."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rooflight.cli.main import main
from rooflight.cli.running.train_page import event_text
from rooflight.errors import UsageError
from rooflight.train.events import losses, validation_losses
from rooflight.train.facts import facts_of
from rooflight.train.metrics import TrainMetrics
from rooflight.train.run import AdamW, Run, claim, identity, run_from_json, run_to_json
from rooflight.train.tokens import Records, split_records

from .launched import COMPILES_QUICKLY
from .small_run import BATCH, SEQ, make_data, small_plan, write_plan

_FLAGS = ("--steps", "12", "--save-every", "5", "--validate-every", "4", "--validate-batches", "3")


def _run(tokens: Path, **changes: Any) -> Run:
    return replace(Run(small_plan("fsdp=X", "X=4", "v5e:2x2"), str(tokens), "run", 100), **changes)


def _told(name: str) -> dict[str, Any]:
    worker = Path(__file__).with_name("told_worker.py")
    done = subprocess.run([sys.executable, str(worker), name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_step_that_tells_its_norm_is_the_step_that_does_not() -> None:
    found = _told("fsdp")
    assert found["same"], found
    assert found["held_out"] == pytest.approx(found["loss"], rel=1e-5), found
    assert found["norm"] == pytest.approx(found["by_hand"], rel=1e-4), found


@pytest.mark.full
def test_stages_that_tell_their_norm_are_those_that_do_not() -> None:
    assert _told("stages")["same"]


def test_the_rate_that_is_told_is_that_of_the_optimizer() -> None:
    import optax  # pyright: ignore[reportMissingTypeStubs]

    rng = random.Random(0)
    for _ in range(6):
        told = AdamW(10 ** -rng.uniform(2, 5), rng.randint(1, 50), rng.random())
        steps = rng.randint(1, 120)
        schedule = optax.warmup_cosine_decay_schedule(
            0.0,
            told.learning_rate,
            min(told.warmup_steps, steps),
            max(steps, told.warmup_steps + 1),
            told.learning_rate * told.final_share,
        )
        expected = np.asarray(schedule(np.arange(120)))[:steps]
        found = [told.rate_at(step, steps) for step in range(steps)]
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-10)


def test_a_step_is_told_with_its_tokens_its_rate_and_its_mfu(tmp_path: Path) -> None:
    run = _run(tmp_path, out=str(tmp_path / "run"), optimizer=AdamW(1e-3, warmup_steps=4))
    metrics = TrainMetrics(run, "TPU v5 lite")
    facts = {"step": 2, "loss": 3.0, "gradient_norm": 1.25, "seconds": 0.5}
    told = metrics.step(facts)
    metrics.validated({"step": 3, "loss": 2.5})
    metrics.close()
    assert (told["tokens"], told["learning_rate"]) == (3 * BATCH * SEQ, pytest.approx(5e-4))
    assert {"6ND"} < set(told["mfu"])
    text = event_text({"event": "step", **told}, 100)
    assert text is not None and "gradient norm 1.25, rate 0.0005, 1.54 ktokens, 500 ms" in text
    written = next((tmp_path / "run" / "tensorboard").iterdir()).read_bytes()
    for tag in (b"gradient_norm", b"learning_rate", b"tokens", b"mfu/6ND", b"validation_loss"):
        assert tag in written


@pytest.mark.parametrize("held_out", [1, 7, 64])
def test_no_token_that_is_held_out_is_a_target_of_a_step(tmp_path: Path, held_out: int) -> None:
    """Two files, each token a number of its own, so that what is read says where it was."""
    from rooflight.train import tokens as written

    def numbers(texts: Sequence[Path], _: object) -> Any:
        yield from (np.arange(1500), np.arange(1500, 2777))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "_encoded", numbers)
        patch.setattr(written, "_FILE_TOKENS", 1400)
        text = tmp_path / "text"
        text.write_text("".join(map(chr, range(1000, 4000))))
        written.write_tokens([text], tmp_path / "tokens", vocab=4000)
    records = Records(tmp_path / "tokens", 16)
    assert len(records.index.files) == 2
    train, rest = split_records(records, held_out)
    assert (len(rest), len(train)) == (held_out, len(records) - held_out)
    seen = {int(t) for i in range(len(train)) for t in train[i][1:]}
    held = {int(t) for i in range(len(rest)) for t in rest[i][1:]}
    assert not seen & held and len(seen) + len(held) == 16 * len(records)
    with pytest.raises(UsageError, match="leave none to train on"):
        split_records(records, len(records))


def test_batches_of_steps_never_hold_a_record_that_is_held_out(tokens: Path) -> None:
    import jax
    from jax.sharding import PartitionSpec

    from rooflight.train.loop import batches, held_out_batches

    run = _run(tokens, validate_every=10, validate_batches=5)
    count = len(Records(tokens, SEQ)) // BATCH * 2  # each record more than once
    run = replace(run, steps=count)
    rows = jax.NamedSharding(jax.make_mesh((1,), ("X",)), PartitionSpec("X", None))
    held = {
        bytes(row) for batch, _ in held_out_batches(run, rows) for row in np.asarray(batch.tokens)
    }
    assert len(held) == run.held_out == 5 * BATCH
    read = {bytes(row) for batch, _ in batches(run, rows, 0) for row in np.asarray(batch.tokens)}
    assert not read & held and len(read) > len(held)


def test_what_is_held_out_is_a_part_of_what_a_run_is(tmp_path: Path, tokens: Path) -> None:
    run = _run(tokens, out=str(tmp_path / "run"))
    older = json.loads(run_to_json(run)) | {"schema": 2}
    for name in ("validate_every", "validate_batches", "weights"):
        del older[name]
    assert run_from_json(json.dumps(older)) == run
    held = replace(run, validate_every=10)
    assert identity(held) != identity(run) == identity(replace(run, validate_batches=3))
    assert identity(replace(held, validate_every=20)) == identity(held)
    assert identity(replace(held, validate_batches=3)) != identity(held)
    claim(held)
    with pytest.raises(UsageError, match="held-out data or first weights differ"):
        claim(run)
    with pytest.raises(UsageError, match="leave none to train on"):
        claim(replace(held, out=str(tmp_path / "other"), validate_batches=10**5))


def test_flags_that_hold_out_nothing_are_refused(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=4", "v5e:2x2"))
    flags = ["--data", str(tokens), "--out", str(tmp_path / "run"), "--steps", "10", "--cpu"]
    for wrong in (["--validate-every", "0"], ["--validate-batches", "0"]):
        assert main(["train", str(plan), *flags, *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err


def test_a_run_that_was_killed_has_the_validation_losses_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    tokens = make_data(tmp_path)
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=2", "v5e:2x1"))
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def started(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rooflight", "train", str(plan), "--data", str(tokens)]
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--out", str(out), *_FLAGS, "--cpu"],
                stdout=log,
                stderr=log,
                env=os.environ | COMPILES_QUICKLY,
            )

    assert started(whole).wait() == 0, (tmp_path / "log").read_text()
    killed.mkdir()
    shutil.copytree(whole / "compiled", killed / "compiled")
    first = started(killed)
    while first.poll() is None and max(losses(killed), default=-1) < 6:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert started(killed).wait() == 0, (tmp_path / "log").read_text()
    assert [*validation_losses(whole)] == [0, 4, 8, 12]
    assert validation_losses(killed) == validation_losses(whole)
    assert losses(killed) == losses(whole)
    assert len({*validation_losses(whole).values()}) == 4


def test_hosts_with_other_first_weights_differ(tmp_path: Path, tokens: Path) -> None:
    run = _run(tokens)
    plain = facts_of(run, 4)
    begun = replace(run, weights=str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"12")
    mine = facts_of(begun, 4)
    (tmp_path / "model.safetensors").write_bytes(b"123")
    assert "weights" not in plain.data
    assert set(mine.differences(facts_of(begun, 4))) == {"data"}
