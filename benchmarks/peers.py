"""Other engines beside ours on this machine: the same weights, prompts and lengths.

Each peer is installed from wheels into an environment of its own that is thrown away; a note says
of one that cannot be installed or run the last line of why. Every peer reads and times in a
process of its own, the fastest of its rounds counts. `engine` times ours.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.engine import CONFIG, PROMPT, TEXT, model_of
from benchmarks.machine import OtherLoad
from benchmarks.record import Row

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


def times(python: Path, name: str, model: Path, batches: tuple[int, ...]) -> Iterator[Row]:
    """A row for each batch."""
    prompts = [
        np.random.default_rng(b).integers(0, CONFIG["vocab_size"], (b, PROMPT)).tolist()
        for b in batches
    ]
    sizes = (os.cpu_count() or 1, TEXT, ROUNDS)
    words = [str(model), f"{model}-out", *map(str, sizes), json.dumps(prompts)]
    command = [str(python), "-c", TIMED.format(code=PEERS[name].code), *words]
    load, own = OtherLoad(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout and it.stderr
        for line in it.stdout:
            if not line.startswith("["):
                continue
            batch, seconds, used = json.loads(line)
            rate, part = batch * TEXT / seconds, load.part(running_s=used - own)
            yield Row(f"batch {batch}: {name}", rate, "tokens/s", "higher", ROUNDS, load=part)
            load, own = OtherLoad(), used
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


def run(*, quick: bool) -> Iterator[Row | str]:
    with tempfile.TemporaryDirectory() as root:
        model = Path(root) / "model"
        model_of(model)
        with_tokenizer(model)
        for name, peer in PEERS.items():
            try:
                python = install(Path(root) / name, peer.packages)
                yield from times(python, name, model, (1,) if quick else (1, 8, 32))
            except subprocess.CalledProcessError as error:
                yield f"{name} was not installed: {last_line(error.stderr)}"
            except OSError as error:
                yield f"{name} was not run: {error}"
    yield from (f"{name} is not compared: {why}." for name, why in NOT_COMPARED.items())
