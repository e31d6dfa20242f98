"""What a process holds at most while it reads and writes a checkpoint of many files.

Run as a process of its own: `python hf_memory_worker.py FOLDER`. Prints one JSON object of bytes.
The fake devices keep their weights in the memory of the process, so an import grows by the model
and by what the host needs beside it; an export only by the latter.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from device_weights import device_nbytes

from rooflight.models.huggingface.read import model_from_hf
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.rules import parse_layout
from rooflight.program.checkpoint.export import Made, export_huggingface, write_checkpoint
from rooflight.program.checkpoint.match import published
from rooflight.program.checkpoint.read import import_huggingface
from rooflight.program.model.params import abstract_params, every_spec, tensor_specs
from rooflight.program.shardings import device_mesh

FILE_BYTES = 40_000_000
CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 8192,
    "dtype": "bfloat16",
}


def status(key: str) -> int:
    found = re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def growth(work: Callable[[], Any]) -> tuple[int, Any]:
    """The most bytes that the process held during some work, over those before it."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    done = work()
    return status("VmHWM") - before, done


def random_array(shape: tuple[int, ...]) -> Any:
    drawn = np.random.default_rng(0).standard_normal(shape, np.float32)
    return drawn.astype(jnp.bfloat16)


def main(folder: Path) -> dict[str, int]:
    specs = tensor_specs(model_from_hf(CONFIG), "bf16")
    source, out = folder / "source", folder / "out"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    made: list[Made] = []
    for stored in published("llama", specs).every():
        shape = stored.form.shape(stored.sizes)
        size = 2 * int(np.prod(shape))
        made += [Made(p.name, size, partial(random_array, shape)) for p in stored.places()]
    files = write_checkpoint(source, made, max_file_bytes=FILE_BYTES)
    constraints = Constraints(parse_layout("fsdp=X,tp=Y"), {"X": 2, "Y": 2}, {})
    target = abstract_params(specs, constraints, device_mesh(constraints.axes))
    jax.block_until_ready(jnp.zeros(4))  # jax's own memory is not counted
    import_growth, found = growth(lambda: import_huggingface(source, specs, target))
    write = partial(export_huggingface, config=CONFIG, max_file_bytes=FILE_BYTES)
    export_growth, _ = growth(lambda: write(found.params, specs, out))
    return {
        "model": sum(s.nbytes for s in every_spec(specs)),
        "block": max(device_nbytes(s, constraints) for s in every_spec(specs)),
        "file": FILE_BYTES,
        "files": len(files),
        "import_growth": import_growth,
        "export_growth": export_growth,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
