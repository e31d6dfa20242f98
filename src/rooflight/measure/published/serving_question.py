"""A measured serving row as a question to the step model: what ran, how it was split, what load.

In: a `ServingRow`. Out: a `ServingQuestion`; or a `UsageError` that says why the row cannot be
asked. What neither the row nor the benchmark's own recipes say is assumed, and listed.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, cast

from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.measure.published.rows import FOLDER, Fields, read_facts
from rooflight.measure.published.serving_rows import ServingRow
from rooflight.models.presets import load_model, read_model
from rooflight.models.spec import ModelSpec, Moe
from rooflight.plan.serving.step.layout import KvSplit, Precision

# What the benchmark's own configurations say about a row and the row does not.

_FILE = FOLDER / "serving_recipes.json"
_EARLY = timedelta(days=7)  # runs come before the change that adds them is merged


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Engines of one kind: how many, and how one of them is split."""

    count: int
    gpus: int
    expert_ways: int
    splits_batch: bool  # attention is data-parallel


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """One configuration of the benchmark."""

    image: str
    drafted: int  # tokens that are proposed ahead of a step
    since: str
    concurrency: frozenset[int]
    decode: WorkerGroup
    prefill: WorkerGroup | None  # None where the same workers do both


def matching(row: ServingRow) -> list[BenchmarkConfig]:
    """Recipes of the row's model, chip, engine, lengths, load and version, then in use."""
    found = [r for r in _of_kind(row) if row.concurrency in r.concurrency]
    version, day = row.text("backend_version").lower(), row.measured_on
    found = [r for r in found if version in r.image]
    return [r for r in found if not day or _minus(r.since) <= day]


def nearest(row: ServingRow, gpus: tuple[int, int]) -> BenchmarkConfig | None:
    """The recipe of the nearest load, of the stated GPUs of a prefill and a decode worker."""
    fits = [
        r
        for r in _of_kind(row)
        if not r.drafted and r.prefill and (r.prefill.gpus, r.decode.gpus) == gpus
    ]
    loads = [(abs(math.log(c / row.concurrency)), r) for r in fits for c in r.concurrency]
    return min(loads, key=lambda pair: pair[0])[1] if loads else None


def _minus(day: str) -> str:
    return (date.fromisoformat(day) - _EARLY).isoformat()


def _of_kind(row: ServingRow) -> Iterable[BenchmarkConfig]:
    return _recipes().get(_key(row), ())


def _key(row: ServingRow) -> tuple[str, ...]:
    names = ("precision", "isl", "osl")
    return (row.model, row.chip, row.engine, *(row.text(n) for n in names), row.text("mode"))


@lru_cache(maxsize=1)
def _recipes() -> Mapping[tuple[str, ...], list[BenchmarkConfig]]:
    found: dict[tuple[str, ...], list[BenchmarkConfig]] = {}
    for entry in json.loads(_FILE.read_text(encoding="utf-8"))["recipes"]:
        mode = "disagg" if "prefill" in entry else "agg"
        names = ("model", "chip", "engine", "precision", "isl", "osl")
        found.setdefault((*(str(entry[n]) for n in names), mode), []).append(_recipe(entry))
    return found


def _recipe(entry: Mapping[str, Any]) -> BenchmarkConfig:
    prefill = entry.get("prefill")
    return BenchmarkConfig(
        entry["image"],
        entry["drafted"],
        entry["since"],
        frozenset(entry["concurrency"]),
        _workers(entry["decode"] if prefill else entry["workers"]),
        _workers(prefill) if prefill else None,
    )


def _workers(side: list[int]) -> WorkerGroup:
    count, gpus, expert_ways, splits_batch = side
    return WorkerGroup(count, gpus, expert_ways, bool(splits_batch))


_STORED = {"": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "int4_wo": "int4"}
_POWERS = (4, 8, 16, 32, 64)
_BLACKWELL = ("b200", "b300", "gb200", "gb300")


@dataclass(frozen=True, slots=True)
class ServingQuestion:
    """One row as the step model sees it."""

    row: ServingRow
    model: ModelSpec
    chip: str  # of the catalog
    tp: int
    dp: int
    ep: int
    precision: Precision
    batch: float  # requests that one generating worker holds
    prompt: int
    output: int
    drafted: int
    cached: float  # the part of a prompt that is in the prefix cache
    eager: bool  # kernels are launched one by one in generate steps too
    kernels: int  # that the sizes of the model do not show
    assumed: tuple[str, ...]
    kv: KvSplit = "heads"  # what the cache is split by past its heads

    @property
    def is_moe(self) -> bool:
        return any(isinstance(block.mlp, Moe) for block in self.model.blocks)


@dataclass(frozen=True, slots=True)
class _Split:
    """A worker that generates: how it is split, its share of the load."""

    workers: WorkerGroup
    count: int
    drafted: int
    assumed: tuple[str, ...] = ()


def ask_serving(row: ServingRow) -> ServingQuestion:
    """Turns a row into a question."""
    facts = read_facts("serving_sources")
    if not (row.tpot_s and row.number("isl") and row.number("osl")):
        raise UsageError(
            "no lengths, or no time per token", hint="fill in isl, osl, silicon_tpot_ms"
        )
    model = _model(row.model, facts["models"])
    is_moe = any(isinstance(block.mlp, Moe) for block in model.blocks)
    split = _disaggregated(row) if row.is_disaggregated else _together(row, is_moe)
    workers = split.workers
    chip = facts["chips"].get(row.chip)
    if chip is None:
        raise UsageError(
            f"no chip is known as {row.chip}", hint=f"one of {', '.join(facts['chips'])}"
        )
    share = facts["mean_length"].get(row.source, 1.0)
    held = [known for known in _assumptions() if _holds(row, known)]
    assumed = [*split.assumed, *(str(known["because"]) for known in held), *model.not_understood]
    return ServingQuestion(
        row,
        model,
        chip,
        tp=1 if workers.splits_batch else workers.gpus,
        dp=workers.gpus if workers.splits_batch else 1,
        ep=workers.expert_ways if is_moe else 1,
        precision=_precision(row, chip, is_moe, facts["whole"].get(row.model, ["head", "router"])),
        batch=max(1.0, _load(row, workers) / split.count),
        prompt=round(row.number("isl") * share),
        output=round(row.number("osl") * share),
        drafted=split.drafted,
        cached=max((float(k.get("cached", 0.0)) for k in held), default=0.0),
        eager=any(k.get("eager", False) for k in held),
        kernels=int(facts["kernels"].get(row.model, 0)),
        assumed=tuple(assumed),
    )


@lru_cache(maxsize=64)
def _known(name: str) -> ModelSpec:
    path = FOLDER / "serving_models" / f"{name}.toml"
    return read_model(path) if path.is_file() else load_model(name)


def _model(name: str, known: Fields) -> ModelSpec:
    if name not in known:
        raise UsageError(f"nobody states the sizes of {name}", hint="add a file to serving_models/")
    return _known(known[name])


def _assumptions() -> Sequence[Fields]:
    return cast(Sequence[Fields], read_facts("serving_sources")["assumed"])


def _holds(row: ServingRow, known: Fields) -> bool:
    stated = {"source": row.source, "engine": row.engine, "chip": row.chip, "model": row.model}
    return all(known.get(key, value) == value for key, value in stated.items())


def _load(row: ServingRow, workers: WorkerGroup) -> float:
    """Requests over all generating workers; aiconfigurator's batch is that of one rank already."""
    if row.source != "aiconfigurator" and row.concurrency:
        return float(row.concurrency)
    batch = row.number("decode_batch_size" if row.is_disaggregated else "batch_size")
    if not batch:
        raise UsageError("the row does not say the batch", hint="fill in batch_size")
    return float(batch * (workers.gpus if workers.splits_batch else 1))


def _precision(row: ServingRow, chip: str, is_moe: bool, whole: list[str]) -> Precision:
    """Experts and dense weights as the row says; caches of quantised models are fp8."""
    stated = row.text("moe_quant_mode" if is_moe else "gemm_quant_mode")
    if stated not in _STORED:
        raise UsageError(f"nobody knows how {stated} is stored", hint=f"one of {list(_STORED)}")
    stored = _STORED[stated]
    if row.model == "gpt-oss-120b":  # however it is served, its experts are published in mxfp4
        stored = "mxfp4"
    quantised = stored != "bf16"
    compute = stored
    if stored == "int4" or (stored == "mxfp4" and chip not in _BLACKWELL):
        compute = "bf16"
    return Precision(
        DTYPES[stored],
        DTYPES["fp8" if quantised else "bf16"],
        compute,
        whole=tuple(whole) if quantised else (),
    )


def _together(row: ServingRow, is_moe: bool) -> _Split:
    """Workers that do both; GPUs of a worker are all that the row's ways make up."""
    workers = _stated(row, is_moe)
    if workers.gpus > 16 or workers.gpus not in (1, 2, *_POWERS):
        raise UsageError(
            f"the row counts {workers.gpus} GPUs of all workers together",
            hint="rows of one worker have 1, 2, 4, 8 or 16",
        )
    if row.source == "aiconfigurator":
        return _Split(workers, 1, 0)
    alike = [
        r
        for r in matching(row)
        if (r.decode.gpus, r.decode.expert_ways, r.decode.splits_batch)
        == (workers.gpus, workers.expert_ways, workers.splits_batch)
    ]
    drafted, assumed = _drafted(row, alike)
    return _Split(workers, 1, drafted, assumed)


def _drafted(row: ServingRow, alike: list[BenchmarkConfig]) -> tuple[int, tuple[str, ...]]:
    """The tokens proposed ahead, where every matching recipe proposes some."""
    depths = {r.drafted for r in alike}
    if row.source == "inferencex-db" or 0 in depths or not depths:
        is_open = row.source != "inferencex-db" and len(depths) > 1
        return 0, ("no draft tokens: recipes with and without match",) if is_open else ()
    return max(depths), (f"{max(depths)} draft tokens, as its recipe says",)


def _stated(row: ServingRow, is_moe: bool) -> WorkerGroup:
    """The ways of a row, of which several columns may be products of others."""
    tp, dp, width, ep = (max(1, row.number(n)) for n in _columns(""))
    if not is_moe:
        return WorkerGroup(1, tp, 1, False)
    if width == ep and ep > 1 and tp * dp == ep * ep:
        return WorkerGroup(1, ep, ep, dp > 1)  # one of them was multiplied by ep
    if tp > 1 and tp == dp and ep == tp * dp:
        return WorkerGroup(1, tp, tp, True)
    if tp == 1 and dp > 1:
        return WorkerGroup(1, dp, ep, True)
    gpus = max(tp, width * ep)
    return WorkerGroup(1, gpus, min(ep, gpus), False)


def _columns(side: str) -> Iterator[str]:
    return (side + n for n in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"))


def _disaggregated(row: ServingRow) -> _Split:
    """Workers that only generate: by the row where it says, else by recipe."""
    gpus = tuple(_gpus(row, side) for side in ("prefill_", "decode_"))
    if gpus[0] == gpus[1] and gpus[0] not in (1, 2, *_POWERS):
        raise UsageError(
            f"the row counts {gpus[1]} GPUs of all workers together",
            hint="give decode_tp_size and decode_num_workers of one kind of worker",
        )
    count = row.number("decode_num_workers")
    if row.source == "aiconfigurator" and count:
        return _Split(_stated_decode(row), 1, 0)
    found = [r for r in matching(row) if r.prefill and _alike(row, r, gpus, count)]
    if found:
        drafted, assumed = _drafted(row, found)
        chosen = min(found, key=lambda r: (abs(r.drafted - drafted), r.decode.splits_batch))
        return _Split(chosen.decode, count or chosen.decode.count, drafted, assumed)
    near = nearest(row, (gpus[0], gpus[1])) if row.concurrency and not count else None
    if near:
        why = f"{near.decode.count} generating workers, as the recipe of the nearest load"
        return _Split(near.decode, near.decode.count, 0, (why,))
    return _Split(_stated_decode(row), count or 1, 0, () if count else ("one generating worker",))


def _alike(row: ServingRow, recipe: BenchmarkConfig, gpus: tuple[int, ...], count: int) -> bool:
    if recipe.prefill is None or recipe.decode.gpus != gpus[1]:
        return False
    if count:
        stated = (row.number("prefill_num_workers"), count)
        return stated == (recipe.prefill.count, recipe.decode.count)
    ep = row.number("prefill_moe_ep_size")
    return recipe.prefill.gpus == gpus[0] and ep in (0, recipe.prefill.expert_ways)


def _gpus(row: ServingRow, side: str) -> int:
    return max(1, row.number(f"{side}tp_size"), row.number(f"{side}attention_dp_size"))


def _stated_decode(row: ServingRow) -> WorkerGroup:
    tp, dp, width, ep = (max(1, row.number(n)) for n in _columns("decode_"))
    gpus = max(tp, dp)
    return WorkerGroup(1, gpus, min(max(1, gpus // width), max(ep, 1) if dp > 1 else gpus), dp > 1)
