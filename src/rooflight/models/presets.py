"""Built-in models: one TOML file each in `models/`, sizes with their source and date.

In: a name or a path. Out: a `ModelSpec`. The files ship with the package and tests hold each of
them against an independent count, so their form is trusted here.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflight.errors import UnknownNameError
from rooflight.hardware.chip import Source
from rooflight.models.huggingface.read import read_hf_config
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe, Norm, Repeat

_FOLDER = Path(__file__).parent / "presets"

Row = Mapping[str, Any]  # a TOML table: its values are of any TOML type until read


def model_names() -> tuple[str, ...]:
    """Every built-in model, families together, small to large."""
    return tuple(sorted((p.stem for p in _FOLDER.glob("*.toml")), key=_rank))


def _rank(name: str) -> tuple[str, list[float], str]:
    """Words by the alphabet, numbers by size."""
    family, *rest = re.split(r"(\d+(?:\.\d+)?[bm]?)", name)
    return family, [_number(w) for w in rest if w[:1].isdigit()], name


def _number(word: str) -> float:
    """A million counts as a thousandth, a billion as one."""
    return float(word.rstrip("bm")) / (1000 if word.endswith("m") else 1)


def load_model(name: str | ModelSpec) -> ModelSpec:
    """Finds a model: a built-in name in any spelling, a config.json or a folder that has one.

    One that is found already is that.

    >>> load_model("Llama-3-70B").name, load_model("meta-llama/Llama-3.1-8B").num_layers
    ('llama3-70b', 32)
    """
    if isinstance(name, ModelSpec):
        return name
    found = find_preset(name)
    if found:
        return found
    if name.endswith(".json") or os.path.isdir(name):  # False too where no path can be so
        return read_hf_config(Path(name))
    known = (*model_names(), *(a for n in model_names() for a in _aliases(n)))
    hint = UnknownNameError("model", name, known).hint
    if not hint.startswith("did you mean"):
        hint = "`rooflight model` lists the models; a path to a config.json works too"
    raise UnknownNameError("model", name, (), hint=hint)


def find_preset(name: str) -> ModelSpec | None:
    """The built-in model of a name in any spelling; None where there is none."""
    found = _spellings().get(_spelling(name))
    return _read(found) if found else None


def _spelling(name: str) -> str:
    """Without the owner, upper case and punctuation: many write one name in many ways."""
    return re.sub(r"[-_. ]", "", name.lower().rpartition("/")[2])


@lru_cache(maxsize=1)
def _spellings() -> dict[str, str]:
    return {_spelling(word): n for n in model_names() for word in (n, *_aliases(n))}


def _table(name: str) -> Row:
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text())


def _aliases(name: str) -> tuple[str, ...]:
    return tuple(_table(name).get("aliases", ()))


@lru_cache(maxsize=64)
def _read(name: str) -> ModelSpec:
    return _spec(name, _table(name))


@lru_cache(maxsize=64)
def read_model(path: Path) -> ModelSpec:
    """Reads a model that is written as the built-in ones are but does not belong to them."""
    return _spec(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))


def _spec(name: str, table: Row) -> ModelSpec:
    blocks = {key: _block(row) for key, row in table["blocks"].items()}
    layers = tuple(
        Repeat(tuple(blocks[b] for b in r["blocks"]), r["times"]) for r in table["layers"]
    )
    source = Source("source", **table["source"])
    apart = ("aliases", "blocks", "layers", "norm", "source", "not_understood")
    rest = {key: value for key, value in table.items() if key not in apart}
    return ModelSpec(
        name=name,
        layers=layers,
        norm=Norm(**table.get("norm", {})),
        source=source,
        not_understood=tuple(table.get("not_understood", ())),
        **rest,
    )


def _block(row: Row) -> Block:
    attention: dict[str, Any] = dict(row["attention"])
    if "latent" in attention:
        attention["latent"] = Latent(**({"query_rank": None} | attention["latent"]))
    mlp = Mlp(**row["mlp"]) if "mlp" in row else _moe(row["moe"])
    norms = tuple(row.get("norms", ("attention_in", "mlp_in")))
    return Block(Attention(**attention), mlp, norms, row.get("is_parallel", False))


def _moe(row: Row) -> Moe:
    parts: dict[str, Any] = {k: Mlp(**row[k]) for k in ("expert", "shared") if k in row}
    return Moe(**(dict(row) | parts))
