# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Other engines beside ours on this machine: the same weights, prompts and lengths.

Run it: `python tests/engine/peers.py [--only NAME,...] [--batches 1,8,32] [--write]`, which writes
a dated table into docs/serve.md. Each peer is installed from wheels into an environment of its own
that is thrown away; one that cannot be installed or run is told, with the last line of why. Every
peer reads and times in a process of its own; `load` is the part of the machine that others used
meanwhile, and above 0.08 a row is noise. Ours are timed by `speed.py`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
from speed import CONFIG, PROMPT, TEXT, busy_ticks, model_of, write_block

ROUNDS = 3


class Peer(NamedTuple):
    """What is installed, and a program that defines `run(prompts) -> texts` for a folder."""

    packages: tuple[str, ...]
    code: str


# Converting takes torch and transformers, which come from the environment that runs this file.
PEERS = {
    "ctranslate2": Peer(
        ("ctranslate2",),
        """
import ctranslate2
from ctranslate2.converters import TransformersConverter
TransformersConverter(folder).convert(out, force=True)
model = ctranslate2.Generator(out, device="cpu", compute_type="float32", intra_threads=cores)
def run(prompts):
    tokens = [[f"t{i}" for i in row] for row in prompts]
    found = model.generate_batch(tokens, max_length=text, min_length=text, sampling_topk=1,
        include_prompt_in_result=False, max_batch_size=len(tokens))
    return [r.sequences_ids[0] for r in found]
""",
    ),
    "onnxruntime-genai": Peer(
        ("onnxruntime-genai", "onnx", "onnx-ir"),
        """
import numpy, onnxruntime_genai as genai
from onnxruntime_genai.models.builder import create_model, parse_extra_options
what = (None, folder, out, "fp32", "cpu", out + "-cache")
create_model(*what, **parse_extra_options(*what, []))
model = genai.Model(out)
def run(prompts):
    how = genai.GeneratorParams(model)
    size = len(prompts[0]) + text
    how.set_search_options(max_length=size, min_length=size, batch_size=len(prompts))
    made = genai.Generator(model, how)
    made.append_tokens(numpy.array(prompts, dtype=numpy.int32))
    while not made.is_done():
        made.generate_next_token()
    return [made.get_sequence(i)[-text:].tolist() for i in range(len(prompts))]
""",
    ),
    "openvino-genai": Peer(
        ("openvino-genai", "optimum-intel[openvino]"),
        """
import numpy, openvino, openvino_genai as genai
from optimum.intel import OVModelForCausalLM
OVModelForCausalLM.from_pretrained(folder, export=True, compile=False).save_pretrained(out)
settings = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
cache = genai.SchedulerConfig()
cache.cache_size, cache.enable_prefix_caching = 1, False
model = genai.ContinuousBatchingPipeline(out, cache, "CPU", settings)
how = genai.GenerationConfig(max_new_tokens=text, ignore_eos=True, do_sample=False)
def run(prompts):
    inputs = [openvino.Tensor(numpy.array([row], dtype=numpy.int64)) for row in prompts]
    return [r.m_generation_ids[0] for r in model.generate(inputs, [how] * len(inputs))]
""",
    ),
}
NOT_COMPARED = {
    "llama.cpp": "no wheel; half an hour to build",
    "vllm": "its wheels are for GPUs; the one for CPUs is not its makers'",
}
TIMED = """
import json, sys, time
folder, out, cores, text, rounds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
{code}
for batch in json.loads(sys.argv[6]):
    seconds = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        found = run(batch)
        seconds.append(time.perf_counter() - begin)
    assert all(len(row) == text for row in found), [len(row) for row in found]
    print(json.dumps([len(batch), min(seconds[1:]), time.process_time()]), flush=True)
"""


def install(folder: Path, packages: tuple[str, ...]) -> Path:
    """A python with these packages, and those of the environment that runs this file."""
    venv.create(folder, with_pip=True)
    python, inside = folder / "bin" / "python", next(folder.glob("lib/python*/site-packages"))
    # Before pip runs, which then finds torch there and does not fetch another.
    (inside / "outer.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    command = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *packages]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return python


def times(python: Path, peer: Peer, model: Path, batches: list[int]) -> Iterator[str]:
    """A line for each batch: tokens a second, seconds, and other load."""
    prompts = [
        np.random.default_rng(b).integers(0, CONFIG["vocab_size"], (b, PROMPT)).tolist()
        for b in batches
    ]
    cores = os.cpu_count() or 1
    words = [str(model), str(model) + "-out", str(cores), str(TEXT), str(ROUNDS)]
    command = [str(python), "-c", TIMED.format(code=peer.code), *words, json.dumps(prompts)]
    ticks, begin, own = busy_ticks(), time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout and it.stderr
        for line in it.stdout:
            if not line.startswith("["):
                continue
            batch, seconds, used = json.loads(line)
            busy = (busy_ticks() - ticks) / os.sysconf("SC_CLK_TCK") - (used - own)
            load = max(0.0, busy) / (time.perf_counter() - begin) / cores
            ticks, begin, own = busy_ticks(), time.perf_counter(), used
            yield f"{batch:5} {batch * TEXT / seconds:7.1f} {seconds:8.3f} {load:5.2f}"
        if it.wait():
            raise OSError(last_line(it.stderr.read()))


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1][:160]


def with_tokenizer(folder: Path) -> None:
    """Converters want one; its words are the numbers of tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"t{i}": i for i in range(CONFIG["vocab_size"])}
    made = Tokenizer(models.WordLevel(words, unk_token="t0"))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="t0", bos_token="t1", eos_token="t2"
    )
    fast.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    batches = [int(b) for b in options.batches.split(",")]
    lines = [f"{'peer':>18} {'batch':>5} {'tok/s':>7} {'seconds':>8} {'load':>5}"]
    with tempfile.TemporaryDirectory() as root:
        model = Path(root) / "model"
        model_of(model)
        with_tokenizer(model)
        for name in options.only.split(","):
            try:
                python = install(Path(root) / name, PEERS[name].packages)
                lines += [f"{name:>18} {x}" for x in times(python, PEERS[name], model, batches)]
            except subprocess.CalledProcessError as error:
                lines.append(f"{name:>18} not installed: {last_line(error.stderr)}")
            except OSError as error:
                lines.append(f"{name:>18} not run: {error}")
            print(lines[-1], file=sys.stderr, flush=True)
    lines += [f"{name:>18} not compared: {why}" for name, why in NOT_COMPARED.items()]
    text = "\n".join([*lines, "", f"{date.today()}, {os.cpu_count()} cores, f32"])
    print(text)
    if options.write:
        write_block("peers", text)


if __name__ == "__main__":
    main()
