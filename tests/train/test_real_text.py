"""Ten minutes of training on real text: the loss falls below what counting words can reach."""

import json
import signal
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.train.events import losses, read_events
from rooflight.train.tokens import write_tokens

from ..dated_figure import today, write_figure
from .launched import Launched
from .small_run import small_plan, write_plan

_VOCAB, _FILES = 4096, 150
_SECONDS = 600.0
_BLOCK = Block(Attention(8, 4, 32), Mlp(768))
_MODEL = ModelSpec("reader", "A reader of Python", 256, _VOCAB, (Repeat((_BLOCK,), 4),))


def _text(path: Path) -> Path:
    """Python's own library: every machine that runs this test has it."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"))[:_FILES]
    path.write_text("".join(f.read_text(encoding="utf-8") for f in files), encoding="utf-8")
    return path


@pytest.mark.full
def test_ten_minutes_on_real_text_with_a_stop_in_the_middle(tmp_path: Path) -> None:
    write_tokens([_text(tmp_path / "text.txt")], tmp_path / "tokens", vocab=_VOCAB)
    index = json.loads((tmp_path / "tokens" / "index.json").read_text())
    plan = replace(small_plan("dp=X", "X=2", "v5e:2x1"), model=_MODEL, batch=16, seq=128)
    path = write_plan(tmp_path / "plan.json", plan)
    words = [str(path), "--data", str(tmp_path / "tokens"), "--steps", "100000", "--cpu"]
    words += ["--processes", "2", "--leader", "127.0.0.1:0", "--save-every", "100"]
    words += ["--learning-rate", "1e-3"]
    run, began = Launched(words, tmp_path / "run"), time.monotonic()
    run.start()
    for stop_s in (_SECONDS / 2, _SECONDS):  # a stop, and the same command again
        run.wait_for_step(1)
        while time.monotonic() - began < stop_s and not run.ended:
            time.sleep(0.5)
        assert not run.ended, run.talk()
        assert run.popen is not None
        run.popen.send_signal(signal.SIGTERM)
        assert run.end() == 75, run.talk()
        if stop_s < _SECONDS:
            run.start()
    run.close()
    curve = losses(run.out)
    assert sorted(curve) == [*range(len(curve))]  # no step is missing
    assert [e["event"] for e in read_events(run.out)].count("restored") >= 1
    last = [curve[step] for step in sorted(curve)[-50:]]
    loss, counting = sum(last) / len(last), float(index["unigram_nats"])
    write_figure(
        "train.md",
        "real text",
        f"{today()}: {index['num_tokens']:,} tokens of Python's own library, {len(curve):,} steps"
        f" in ten minutes on two processes, stopped and started again in the middle: the loss went"
        f" from {curve[0]:.2f} to {loss:.2f}; knowing only how often each token occurs gives"
        f" {counting:.2f}.",
    )
    assert loss < counting - 1
