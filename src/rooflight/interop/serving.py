"""A fleet as the flags of an engine that serves, or as a manifest of Kubernetes.

In: a `ServedFleet`. Out: a `ServedExport`: commands or YAML, and what does not come across. Flags
are rows of `servers.toml`, read at a dated commit.
"""

import json
import math
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, cast

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.interop.framework import Loss
from rooflight.models.presets import find_preset

SERVERS = ("vllm", "sglang")
_FILE = Path(__file__).parent / "servers.toml"
_WHOLE = ("bf16", "f16")  # stored as the checkpoint has it: no flag
_DRAIN_S = 30  # at least
_HAVE_NO_FLAG = {
    "ws": "2D weight-stationary matmuls are not among its layouts",
    "cp": "prompts are not split over chips",
    "pp": "layers are not cut into stages",
}


@dataclass(frozen=True, slots=True)
class ServedFleet:
    """Replicas of one slice and layout; some may only prefill."""

    model: str
    on: Slice
    ways: Mapping[str, int]  # tp, pp, dp, ep, ws, cp; those above 1
    kv_split: str
    weights: str
    kv: str
    compute: str
    replicas: int  # spares among them
    prefill_replicas: int
    max_rows: int
    max_step_tokens: int
    block_tokens: int
    longest: int
    is_cached: bool
    spare: int
    drain_s: int  # in which what is open ends
    draft_tokens: int = 0
    draft_model: str | None = None  # None: a further layer of the model proposes them
    redundant_experts: int | None = None  # of EPLB; None: no EPLB
    adapters: Mapping[str, int] = field(default_factory=dict[str, int])  # count, rank, resident
    is_published: bool = False  # weights are stored as those that everybody downloads

    @property
    def roles(self) -> dict[str, int]:
        """Replicas by what they do; spares are with those that generate."""
        if not self.prefill_replicas:
            return {"serve": self.replicas}
        generate = self.replicas - self.prefill_replicas
        return {"prefill": self.prefill_replicas, "generate": generate}


def read_fleet(path: str) -> ServedFleet:
    """Reads the file of a fleet; `-` is the standard input."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return _fleet(json.loads(text))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path!r} holds no fleet: {error}",
            hint="write one with `rooflight plan serve ... --json`",
        ) from None


def _fleet(document: Mapping[str, Any]) -> ServedFleet:
    fleet = cast("dict[str, Any]", document["fleet"])
    words = dict(word.split("=") for word in str(fleet["layout"]).split(","))
    kv_split = words.pop("kv", "heads")
    weights, kv, compute = str(fleet["dtypes"]).split("/")
    published = find_preset(str(document["model"]))
    draft: Mapping[str, Any] = fleet.get("draft") or {"tokens": 0, "model": None}
    experts: Mapping[str, Any] = fleet.get("experts") or {}
    adapters: Mapping[str, int] = fleet.get("adapters") or {}
    return ServedFleet(
        str(document["model"]),
        parse_slice(str(fleet["on"])),
        {name: int(ways) for name, ways in words.items() if int(ways) > 1},
        kv_split,
        weights.partition("@")[0],
        kv,
        compute,
        int(fleet["replicas"]) + int(fleet["spare"]),
        int(fleet["prefill_replicas"]),
        int(fleet["max_rows"]),
        int(fleet["max_step_tokens"]),
        int(fleet["block_tokens"]),
        int(fleet["longest_request"]),
        bool(document["hit_rate"]),
        int(fleet["spare"]),
        max(_DRAIN_S, math.ceil(2 * float(fleet["simulated"]["e2e"]["p99_s"]))),
        int(draft["tokens"]),
        draft["model"],
        experts.get("redundant"),
        adapters,
        published is not None and published.weights == weights,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """One engine as its sources were at `commit`."""

    name: str
    title: str
    repo: str
    commit: str
    date: str
    command: Sequence[str]
    model: str  # the flag before the model; empty where it stands alone
    tp_holds_dp: bool  # ways of tp are counted with those of dp
    per_rank: bool  # sizes of a step are those of each of dp ranks
    chips: Sequence[str]  # kinds that it runs on
    disaggregated: Sequence[str]  # those where caches go from prefill to generate replicas
    flags: Mapping[str, str]
    switches: Mapping[str, Sequence[str]]
    kv: Mapping[str, str]  # our dtype, theirs
    weights: Mapping[str, str]
    computes: Mapping[str, str]  # by dtype of weights, where matmuls run in another
    draft: Mapping[str, Sequence[str]]  # words, where a layer proposes or a model
    eplb: Sequence[str]
    lora: Sequence[str]
    lora_ranks: Sequence[int]  # that it knows; none: any
    devices: Mapping[str, int]  # of a chip, where tp counts them
    pods: Mapping[str, Mapping[str, Any]]  # by kind of chip: image and further words

    def pod(self, kind: str) -> Mapping[str, Any]:  # as the file has it
        return self.pods.get(kind, {})

    @property
    def reference(self) -> str:
        return f"{self.title} at {self.commit[:12]} of {self.date}"


@dataclass(frozen=True, slots=True)
class ServedExport:
    """Text to use, and what it leaves out."""

    to: str
    reference: str
    text: str
    losses: tuple[Loss, ...]


@lru_cache(maxsize=1)
def servers() -> Mapping[str, Server]:
    """By name."""
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: Server(name, **table) for name, table in tables.items()}


def export_commands(fleet: ServedFleet, server: Server) -> ServedExport:
    """A command for each role, to be run once a replica."""
    losses = tuple(_losses(fleet, server))
    head = [f"# {fleet.model} (put your checkpoint there) for {server.reference}"]
    head += [f"# lost: {loss.what}: {loss.because}" for loss in losses]
    for role, count in fleet.roles.items():
        words = shlex.join(command(fleet, server, role))
        head += [f"# {count} x {fleet.on}: {role}", words]
    return ServedExport(server.name, server.reference, "\n".join(head) + "\n", losses)


def command(fleet: ServedFleet, server: Server, role: str) -> list[str]:
    """The words that start one replica."""
    words = [*server.command, *filter(None, [server.model]), fleet.model]
    ways = dict(fleet.ways)
    if server.tp_holds_dp:
        ways["tp"] = ways.get("tp", 1) * ways.get("dp", 1)
    if fleet.on.chip.name in server.devices:
        ways["tp"] = ways.get("tp", 1) * server.devices[fleet.on.chip.name]
    ranks = ways.get("dp", 1) if server.per_rank else 1
    sizes = {
        "rows": math.ceil(fleet.max_rows / ranks),
        "step_tokens": math.ceil(fleet.max_step_tokens / ranks),
        "longest": fleet.longest,
        "block_tokens": fleet.block_tokens,
        "kv": server.kv.get(fleet.kv, ""),
        "weights": "" if fleet.is_published else server.weights.get(fleet.weights, ""),
    }
    for name, value in {**ways, **sizes}.items():
        if name in server.flags and value:
            words += [server.flags[name], str(value)]
    asked = [*fleet.ways, role, *(["cached"] if fleet.is_cached else [])]
    words += [word for name in asked for word in server.switches.get(name, ())]
    known = {"MODEL": fleet.draft_model or "", "ROUND": str(fleet.draft_tokens + 1)}
    known["TOKENS"] = str(fleet.draft_tokens)
    own = server.draft["model" if fleet.draft_model else "layer"] if fleet.draft_tokens else ()
    if fleet.redundant_experts is not None and not _no_eplb(fleet, server):
        known["REDUNDANT"], own = str(fleet.redundant_experts), [*own, *server.eplb]
    if loras := fleet.adapters:
        wide = next((r for r in server.lora_ranks if r >= loras["rank"]), loras["rank"])
        known |= {"ADAPTERS": str(loras["count"]), "SLOTS": str(loras["resident"])}
        known["WIDTH"], own = str(wide), [*own, *server.lora]
    return words + [reduce(lambda w, one: w.replace(*one), known.items(), word) for word in own]


def _no_eplb(fleet: ServedFleet, server: Server) -> str:
    """Why redundant experts are left out; "" where they are not."""
    ranks = math.prod(fleet.ways.get(name, 1) for name in ("tp", "dp"))
    if "ep" not in fleet.ways:
        return "every chip has a part of each expert"
    if fleet.on.chip.kind == "tpu":
        return "experts stay where they are on TPUs"
    if "ep" not in server.flags and fleet.ways["ep"] != ranks:
        return f"{fleet.redundant_experts} were for ep={fleet.ways['ep']}, and it has {ranks} ranks"
    return ""


def _losses(fleet: ServedFleet, server: Server) -> Iterator[Loss]:
    kind = fleet.on.chip.kind
    if kind not in server.chips:
        yield Loss(f"{fleet.on.chip.title}", f"{server.title} has no {kind.upper()}s")
    elif fleet.prefill_replicas and kind not in server.disaggregated:
        yield Loss("disaggregated replicas", f"it moves no caches between {kind.upper()}s")
    computed = server.computes.get(fleet.weights, fleet.weights)
    same = (fleet.compute, fleet.on.chip.matmul_dtype(fleet.compute))
    if fleet.weights in server.weights and computed not in same:
        yield Loss(f"matmuls in {fleet.compute}", f"with this setting they run in {computed}")
    for name, why in _HAVE_NO_FLAG.items():
        if name in fleet.ways and name not in server.flags:
            yield Loss(f"{name}={fleet.ways[name]}", why)
    ranks = math.prod(fleet.ways.get(name, 1) for name in ("tp", "dp"))
    if "ep" not in server.flags and fleet.ways.get("ep", ranks) != ranks:
        yield Loss(f"ep={fleet.ways['ep']}", f"experts are split over all {ranks} ranks")
    has_heads = fleet.model.lower().startswith(tuple(server.draft["has_heads"]))
    if fleet.draft_tokens and not (fleet.draft_model or has_heads):
        yield Loss(
            "a layer that proposes", "its checkpoint, such as an EAGLE head, is yours to name"
        )
    if fleet.adapters:
        yield Loss("the adapters", "their checkpoints are yours to name, or to load as it runs")
    if fleet.redundant_experts is not None and (why := _no_eplb(fleet, server)):
        yield Loss("EPLB", why)
    if fleet.kv_split != "heads":
        yield Loss(f"kv={fleet.kv_split}", "the cache is split as the engine sees fit")
    for what, dtype, known in (
        ("cache", fleet.kv, server.kv),
        ("weights", fleet.weights, server.weights),
    ):
        is_known = dtype in known or (what == "weights" and fleet.is_published)
        if not is_known and dtype not in _WHOLE:
            yield Loss(f"{what} in {dtype}", "no setting that we know; give a checkpoint that is")
