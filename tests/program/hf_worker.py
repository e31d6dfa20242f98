"""Checkpoints of tiny models of every family: into our program, and back into `transformers`.

Run as a process of its own: `python hf_worker.py FOLDER NAME...`. Prints one JSON object: for each
model what its config leaves over, how far our logits are from theirs, how far theirs are after our
export, the names of tensors that did not come back bit for bit, and how far the gradients of a step
are from theirs; and four-bit weights, decoded.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4"
    " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # compile faster
)

from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "specs"))

import hf_models
import jax
import jax.numpy as jnp
import numpy as np
from hf_configs import CONFIGS, WITHOUT_PRESET  # pyright: ignore[reportMissingImports]

from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.huggingface.read import model_from_hf, read_hf_config
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.checkpoint.export import export_huggingface
from rooflight.program.checkpoint.files import from_mxfp4, open_checkpoint
from rooflight.program.checkpoint.match import match
from rooflight.program.checkpoint.read import LoadedWeights, import_huggingface
from rooflight.program.model.forward import Program
from rooflight.program.model.loss import logits
from rooflight.program.model.params import Tree, abstract_params, tensor_specs
from rooflight.program.shardings import device_mesh
from rooflight.program.train import Batch, loss_and_gradients

LENGTHS = [24, 17, 9, 1]  # longer than every window
FULL_SIZE = (
    *("llama3.1-405b", "mistral-7b", "mixtral-8x22b", "qwen3-32b", "gemma3-27b", "deepseek-v3"),
    *("gpt-oss-120b", "qwen2-72b", "qwen3-235b-a22b", "gemma2-27b", "olmo2-32b"),
    *("phi4", "glm4-9b", "granite3-8b", "gemma-7b", "qwen2-57b-a14b", "glm-4.5", "deepseek-v2"),
)
LAYOUTS = ("fsdp=X,tp=Y", "ws=X,sp=Y", "fsdp=X,ep=Y")


def alone(model: ModelSpec) -> Constraints:
    """The constraints of a program on one device."""
    graph, mesh = model_graph(model), parse_mesh("X=1", on="v5e:1x1")
    dims = dim_sizes(graph, batch=len(LENGTHS), seq=max(LENGTHS))
    return constraints_of(graph, parse_layout("dp=X"), mesh=mesh, dims=dims, dtype=DTYPES["bf16"])


def imported(folder: Path, program: Program) -> LoadedWeights:
    mesh = device_mesh(program.constraints.axes)
    target = abstract_params(program.specs, program.constraints, mesh)
    return import_huggingface(folder, program.specs, target)


def tensors(folder: Path) -> dict[str, Any]:
    found = open_checkpoint(folder)
    return {n: e.read(tuple(slice(0, s) for s in e.shape)) for n, e in found.items()}


def different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what is not the same, bit for bit."""
    gone = set(one) ^ set(other)
    both = set(one) & set(other)
    return sorted(gone | {n for n in both if one[n].tobytes() != other[n].tobytes()})


def full_size(names: list[str]) -> dict[str, Any]:
    """Published models at full size, without weights: what their tensors are to us."""
    found: dict[str, Any] = {}
    for name in names:
        config = (CONFIGS | WITHOUT_PRESET)[name]
        shapes = hf_models.tensor_shapes(config)
        specs = tensor_specs(model_from_hf(config))
        stores, left_out = match(config["model_type"], specs, shapes)
        used = {place.name for stored in stores.every() for place in stored.places()}
        found[name] = {"tensors": len(shapes), "used": len(used), "left_out": dict(left_out)}
    return found


def packed_values() -> dict[str, Any]:
    """Four-bit blocks with every byte and scales of all sizes, as both of us read them."""
    rng = np.random.default_rng(1)
    blocks = rng.permutation(np.arange(2 * 8 * 2 * 16) % 256).reshape(2, 8, 2, 16).astype(np.uint8)
    scales = rng.integers(100, 150, (2, 8, 2)).astype(np.uint8)
    theirs = hf_models.decode_packed(blocks, scales)
    ours = from_mxfp4(blocks, scales).transpose(0, 2, 1)
    return {"equal": bool(np.array_equal(ours, theirs)), "largest": float(np.abs(ours).max())}


def split_imports(
    folder: Path, model: ModelSpec, whole: LoadedWeights
) -> tuple[LoadedWeights, dict[str, int]]:
    """Weights split over four devices; for each layout, how many differ from those on one."""
    counts: dict[str, int] = {}
    split = whole
    for layout in LAYOUTS:
        constraints = Constraints(parse_layout(layout), {"X": 2, "Y": 2}, {})
        split = imported(folder, Program(model, constraints))
        pairs = zip(jax.tree.leaves(whole.params), jax.tree.leaves(split.params), strict=True)
        counts[layout] = sum(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in pairs)
    return split, counts


def compare(name: str, folder: Path) -> dict[str, Any]:
    options = (hf_models.MODELS | hf_models.OPTIONS)[name]
    theirs = hf_models.save_model(folder, options)
    model = read_hf_config(folder)
    program = Program(model, alone(model))
    found = imported(folder, program)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, hf_models.VOCAB, (len(LENGTHS), max(LENGTHS)))
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        ours = np.asarray(jax.jit(partial(logits, program))(found.params, tokens))
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    wanted = hf_models.logits_of(theirs, tokens, LENGTHS)
    out = folder / "exported"
    split, counts = split_imports(folder, model, found)
    config = json.loads((folder / "config.json").read_text())
    files = export_huggingface(
        split.params, program.specs, out, config=config, max_file_bytes=60_000
    )
    again = hf_models.logits_of(hf_models.load_model(out), tokens, LENGTHS)
    step = step_gradients(program, found.params, theirs, tokens, folder)
    return {
        "family": options["model_type"],
        "not_understood": model.not_understood,
        "left_out": dict(found.left_out),
        "size": float(np.abs(wanted[real]).max()),
        "error": float(np.abs(ours - wanted)[real].max()),
        "export_error": float(np.abs(again - wanted)[real].max()),
        "files": len(files),
        "largest_file": max(f.stat().st_size for f in files),
        "different": different(tensors(folder), tensors(out)),
        "split": counts,
        "step": step,
    }


def step_gradients(
    program: Program, params: Tree, theirs: Any, tokens: Any, folder: Path
) -> dict[str, float]:
    """How far our loss and gradients of one step are from theirs, tensor by tensor.

    Ours are written as the weights they are of, so the same names hold on both sides.
    """
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    weights = np.roll(real, -1, 1) & (np.arange(max(LENGTHS)) < max(LENGTHS) - 1)
    batch = Batch(*(jnp.asarray(x) for x in (tokens, np.roll(tokens, -1, 1), weights + 0.0)))
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        taken = jax.jit(partial(loss_and_gradients, program, microbatches=1))
        loss, ours = taken(params, batch)
    config = json.loads((folder / "config.json").read_text())
    export_huggingface(ours, program.specs, folder / "ours", config=config)
    wanted_loss = hf_models.save_gradients(theirs, folder / "theirs", tokens, LENGTHS)
    found, wanted = tensors(folder / "ours"), tensors(folder / "theirs")
    assert set(found) == set(wanted)
    errors = {n: np.abs(found[n] - g).max() / (np.abs(g).max() + 1e-30) for n, g in wanted.items()}
    still = [n for n, g in wanted.items() if not g.any()]
    return {
        "loss_error": abs(float(loss) - wanted_loss),
        "error": float(max(e for n, e in errors.items() if n not in still)),
        "moving": len(wanted) - len(still),
        "still": float(max((np.abs(found[n]).max() for n in still), default=0)),
    }


def main(folder: Path, names: list[str]) -> dict[str, Any]:
    hf_models.quiet()
    found = {name: compare(name, folder / str(i)) for i, name in enumerate(names)}
    sizes = full_size(list(FULL_SIZE))
    return {"models": found, "packed": packed_values(), "full_size": sizes}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
