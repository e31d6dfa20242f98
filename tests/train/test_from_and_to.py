"""From a folder of Hugging Face into a run and back: `transformers` is the oracle at both ends."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rooflight.cli.main import main
from rooflight.models.huggingface.read import read_hf_config
from rooflight.plan.file.record import Plan
from rooflight.train.events import losses, validation_losses
from rooflight.train.tokens import Records, split_records

from .launched import COMPILES_QUICKLY
from .small_run import BATCH, SEQ, small_plan, write_plan

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
_HELD_OUT = 2  # batches
_CLOSE = 1e-4  # the plan's matmuls are in bf16, those of transformers are not
_STAGES: dict[str, Any] = {"schedule": "1f1b", "stages": 2, "microbatches": 4}


def _save(folder: Path, config: Any) -> Path:
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def _trained(folder: Path, tokens: Path, plan: Plan, source: Path, steps: int) -> Path:
    """A run of the command line that began with `source`."""
    path = write_plan(folder / "plan.json", replace(plan, model=read_hf_config(source)))
    flags = ["--data", str(tokens), "--steps", str(steps), "--from", str(source), "--cpu"]
    flags += ["--validate-every", "50", "--validate-batches", str(_HELD_OUT)]
    flags += ["--learning-rate", "3e-3", "--out", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "rooflight", "train", str(path), *flags],
        capture_output=True,
        text=True,
        env=os.environ | COMPILES_QUICKLY,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"begins with {source}" in done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(num_hidden_layers=2, attention_bias=True, **_SIZES)
    return _save(tmp_path_factory.mktemp("models") / "llama", config)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tokens: Path, llama: Path) -> Path:
    plan = small_plan("fsdp=X,tp=Y", "X=2,Y=2", "v5e:2x2")
    return _trained(tmp_path_factory.mktemp("from"), tokens, plan, llama, 20)


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    out = run.parent / "exported"
    assert main(["ckpt", "export", str(run), "--hf", str(out)]) == 0
    return out


def _loss(folder: Path, rows: np.ndarray[Any, Any]) -> float:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor(rows[:, :-1])).logits
        targets = torch.tensor(rows[:, 1:]).reshape(-1).long()
        return float(torch.nn.functional.cross_entropy(logits.reshape(len(targets), -1), targets))


def _held_out(tokens: Path) -> np.ndarray[Any, Any]:
    _, held = split_records(Records(tokens, SEQ), _HELD_OUT * BATCH)
    return np.stack([held[i] for i in range(len(held))]).astype(np.int64)


def _first_batch(run: Path) -> np.ndarray[Any, Any]:
    import grain  # pyright: ignore[reportMissingTypeStubs]

    from rooflight.train.run import read_run

    told = read_run(run / "run.json")
    train, _ = split_records(Records(Path(told.data), SEQ), told.held_out)
    rows: Any = grain.MapDataset.source(train).seed(told.seed).shuffle().repeat()
    return np.stack([rows[i] for i in range(BATCH)]).astype(np.int64)


def test_the_first_losses_are_those_of_transformers(run: Path, tokens: Path, llama: Path) -> None:
    assert losses(run)[0] == pytest.approx(_loss(llama, _first_batch(run)), rel=_CLOSE)
    assert validation_losses(run)[0] == pytest.approx(_loss(llama, _held_out(tokens)), rel=_CLOSE)


def test_what_is_exported_has_the_losses_of_the_run(
    run: Path, tokens: Path, llama: Path, exported: Path
) -> None:
    told = validation_losses(run)
    assert told[20] < told[0] - 0.5  # it was trained
    assert _loss(exported, _held_out(tokens)) == pytest.approx(told[20], rel=5 * _CLOSE)
    before, after = (json.loads((f / "config.json").read_text()) for f in (llama, exported))
    assert before == after
    assert (exported / "chat_template.jinja").read_text() == "{{ messages }}"
    shared = (tokens / "tokenizer.json").read_bytes()  # the model came without one
    assert (exported / "tokenizer.json").read_bytes() == shared


def test_the_server_goes_on_as_transformers_does(exported: Path) -> None:
    from rooflight.serve.engine.config import EngineConfig
    from rooflight.serve.engine.load import load_engine
    from rooflight.serve.engine.request import EngineRequest

    model = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    prompt = [5, 17, 42, 200, 11]
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
    engine = load_engine(exported, EngineConfig(1, 32, 2, 32, 32))
    engine.add(EngineRequest(0, tuple(prompt), 12))
    served: list[int] = []
    while engine.has_work:
        served += [token for delta in engine.step() for token in delta.tokens]
    assert served == made[0, len(prompt) :].tolist()


def _tensors(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}


def test_stages_begin_with_and_give_back_the_same_bits(tmp_path: Path, tokens: Path) -> None:
    """Three layers on two stages leave a place empty; the rate of the first step is 0."""
    config = transformers.Qwen3Config(num_hidden_layers=3, tie_word_embeddings=True, **_SIZES)
    source = _save(tmp_path / "qwen3", config)
    plan = small_plan("fsdp=X,pp=P", "X=2,P=2", "v5e:2x2", **_STAGES)
    run = _trained(tmp_path, tokens, plan, source, 1)
    assert validation_losses(run)[0] == pytest.approx(_loss(source, _held_out(tokens)), rel=_CLOSE)
    assert main(["ckpt", "export", str(run), "--hf", str(tmp_path / "out")]) == 0
    before, after = _tensors(source), _tensors(tmp_path / "out")
    before.pop("lm_head.weight", None)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_plan_of_another_model_is_refused_with_what_differs(
    tmp_path: Path, tokens: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small_plan("fsdp=X", "X=4", "v5e:2x2")
    model = read_hf_config(llama)
    other = replace(model, layers=(replace(model.layers[0], times=3),))
    flags = ["--data", str(tokens), "--out", str(tmp_path / "run"), "--steps", "1", "--cpu"]
    for planned, said in (
        (replace(model, d_model=128), "d_model is 128 in the plan, 64 in the folder's config"),
        (other, "layers[0].times is 3 in the plan, 2 in"),
        (replace(model, norm=replace(model.norm, eps=0.5)), "norm.eps is 0.5 in the plan"),
    ):
        path = write_plan(tmp_path / "plan.json", replace(plan, model=planned))
        assert main(["train", str(path), *flags, "--from", str(llama)]) == 2
        assert said in capsys.readouterr().err
    path = write_plan(tmp_path / "plan.json", replace(plan, model=model))
    assert main(["train", str(path), *flags, "--from", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_exports_that_cannot_be_written_are_refused(
    run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in _refusals(run, exported, tmp_path):
        assert main(["ckpt", "export", *words]) == 2, said
        assert said in capsys.readouterr().err
    copy = tmp_path / "new"
    _without_weights(run, copy)
    config = exported / "config.json"
    words = ["ckpt", "export", str(copy), "--hf", str(tmp_path / "out"), "--config", str(config)]
    assert main(words) == 0  # a run of new weights, told what it is
    same = _tensors(exported)
    assert all(np.array_equal(v, same[k]) for k, v in _tensors(tmp_path / "out").items())


def _refusals(run: Path, exported: Path, tmp_path: Path) -> Iterator[tuple[list[str], str]]:
    yield [str(run)], "--hf OUT"
    yield [str(run), "--hf", str(exported)], "already holds"
    _without_weights(run, tmp_path / "new")
    yield [str(tmp_path / "new"), "--hf", str(tmp_path / "a")], "--config FILE"
    other = json.loads((exported / "config.json").read_text()) | {"rms_norm_eps": 0.25}
    (tmp_path / "config.json").write_text(json.dumps(other))
    config = ["--config", str(tmp_path / "config.json")]
    yield [str(run), "--hf", str(tmp_path / "a"), *config], "norm.eps is"


def _without_weights(run: Path, copy: Path) -> None:
    """The same run as if it had begun with new weights."""
    if not copy.exists():
        shutil.copytree(run, copy)
        told = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps(told | {"weights": None}))
