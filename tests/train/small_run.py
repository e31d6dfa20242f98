"""A run small enough to be killed a hundred times: a small model on text made here."""

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.file.record import Plan, from_json, to_json
from rooflight.train.tokens import write_tokens

BATCH, SEQ, VOCAB = 16, 32, 300
STEPS, SAVE_EVERY = 40, 4
MODEL = ModelSpec(
    "small", "A small model", 64, 320, (Repeat((Block(Attention(4, 2, 16), Mlp(128)),), 2),)
)
_EXAMPLE = from_json((files("rooflight.compile") / "example_plan.json").read_text())


def small_plan(layout: str, mesh: str, on: str, **changes: object) -> Plan:
    """A plan of the small model with a layout of one's own."""
    plan = replace(
        _EXAMPLE,
        model=MODEL,
        slice=on,
        batch=BATCH,
        seq=SEQ,
        recipe="f32",
        layout=layout,
        mesh=mesh,
        remat="none",
        microbatches=1,
        zero=1,
    )
    return replace(plan, **changes)  # pyright: ignore[reportArgumentType]


def write_plan(path: Path, plan: Plan) -> Path:
    path.write_text(to_json(plan), encoding="utf-8")
    return path


def write_text(path: Path, *, words: int = 20_000) -> Path:
    """Sentences in which a word says much about the next."""
    rng = random.Random(0)
    known = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(200)]
    follows = {word: rng.choices(known, k=3) for word in known}
    word, said = known[0], list[str]()
    for _ in range(words):
        said.append(word)
        word = rng.choice(follows[word])
    path.write_text(_lines(said), encoding="utf-8")
    return path


def _lines(words: Sequence[str]) -> str:
    return "".join(" ".join(words[i : i + 12]) + "\n" for i in range(0, len(words), 12))


def make_data(folder: Path) -> Path:
    """A folder of tokens."""
    text = write_text(folder / "text.txt")
    write_tokens([text], folder / "tokens", vocab=VOCAB)
    return folder / "tokens"


def words(
    folder: Path, tokens: Path, processes: int, steps: int = STEPS, model: ModelSpec = MODEL
) -> list[str]:
    asked = small_plan("fsdp=X", "X=4", "v5e:2x2", model=model)
    plan = write_plan(folder / "plan.json", asked)
    flags = {"data": tokens, "steps": steps, "save-every": SAVE_EVERY, "processes": processes}
    flags |= {"leader": "127.0.0.1:0", "patience": "8s", "start-patience": "120s"}
    return [str(plan), "--cpu", *(w for k, v in flags.items() for w in (f"--{k}", str(v)))]
