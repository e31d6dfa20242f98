"""Greedy texts of tiny models of every family, by us with a paged cache and by `transformers`.

Run as a process of its own: `python generate_hf_worker.py FOLDER NAME...`. Prints one JSON object:
for each model how many tokens differ, how far our logits along the text are from theirs, and the
smallest distance between the two largest logits, below which a text would be a matter of rounding.
"""

import json
import sys
from pathlib import Path
from typing import Any

import hf_models
import hf_worker as checkpoints  # before jax: it sets up the devices
from generate_layout_worker import steps_of

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import torch

from rooflight.models.huggingface.read import read_hf_config
from rooflight.program.decode.cache import init_cache
from rooflight.program.model.forward import Program
from rooflight.program.shardings import device_mesh

LENGTHS = [24, 17, 9, 1, 12, 5, 20, 3]
PROMPT, TEXT, BLOCK = max(LENGTHS), 64, 4
TABLE = (PROMPT + TEXT) // BLOCK
BATCH, SPARE = len(LENGTHS), 3
SEED = 2  # no two largest logits of any text are within 3e-4


def their_text(model: Any, tokens: Any) -> Any:
    """What `transformers` generates [B,TEXT]; it wants padding before a prompt."""
    shifted = [np.roll(row, PROMPT - n) for row, n in zip(tokens, LENGTHS, strict=True)]
    mask = np.arange(PROMPT) >= PROMPT - np.array(LENGTHS)[:, None]
    model.generation_config.eos_token_id = None  # a random model has no end
    out = model.generate(
        torch.from_numpy(np.stack(shifted)),
        attention_mask=torch.from_numpy(mask.astype(int)),
        max_new_tokens=TEXT,
        do_sample=False,
        pad_token_id=0,
    )
    return out.numpy()[:, PROMPT:]


def their_logits(model: Any, tokens: Any, text: Any) -> Any:
    """Their logits [B,TEXT,V] from whole sequences, without a cache."""
    whole = np.zeros((BATCH, PROMPT + TEXT), np.int64)
    for b, n in enumerate(LENGTHS):
        whole[b, : n + TEXT] = np.concatenate([tokens[b, :n], text[b]])
    every = hf_models.logits_of(model, whole, [n + TEXT for n in LENGTHS])
    at = np.array(LENGTHS)[:, None] - 1 + np.arange(TEXT)
    return np.take_along_axis(every, at[..., None], 1)


def our_text(program: Program, folder: Path, tokens: Any) -> tuple[Any, Any]:
    """Text [B,TEXT] and the logits [B,TEXT,V] it was chosen by; blocks lie in no order."""
    blocks = np.random.default_rng(1).permutation(BATCH * TABLE + SPARE)
    tables = blocks[: BATCH * TABLE].reshape(BATCH, TABLE).astype(np.int32)
    params = checkpoints.imported(folder, program).params
    text, logits = list[Any](), list[Any]()
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        does = steps_of(program)
        cache = init_cache(program, num_blocks=len(blocks), block_size=BLOCK)
        last, cache = does.begin(params, cache, tokens, np.array(LENGTHS), tables)
        for i in range(TEXT):
            logits.append(np.asarray(last))
            text.append(logits[-1].argmax(-1))
            step = (jnp.asarray(x) for x in (text[-1], np.array(LENGTHS) + i, tables))
            last, cache = does.generate(params, cache, *step)
    return np.stack(text, 1), np.stack(logits, 1)


def compare(name: str, folder: Path) -> dict[str, Any]:
    theirs = hf_models.save_model(folder, hf_models.MODELS[name])
    model = read_hf_config(folder)
    program = Program(model, checkpoints.alone(model))
    tokens = np.random.default_rng(SEED).integers(0, hf_models.VOCAB, (BATCH, PROMPT))
    wanted = their_text(theirs, tokens)
    text, logits = our_text(program, folder, tokens)
    top = np.sort(logits, -1)
    return {
        "tokens": wanted.size,
        "different": int((text != wanted).sum()),
        "distinct": len(np.unique(wanted)),
        "error": float(np.abs(logits - their_logits(theirs, tokens, wanted)).max()),
        "margin": float((top[..., -1] - top[..., -2]).min()),
    }


if __name__ == "__main__":
    hf_models.quiet()
    names = sys.argv[2:]
    folders = (Path(sys.argv[1]) / str(i) for i in range(len(names)))
    print(json.dumps({n: compare(n, f) for n, f in zip(names, folders, strict=True)}))
