"""`ServedFleet`: what `rooflight plan serve --json` says of a fleet, as exporters need it."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice, parse_slice


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
    return ServedFleet(
        str(document["model"]),
        parse_slice(str(fleet["on"])),
        {name: int(ways) for name, ways in words.items() if int(ways) > 1},
        kv_split,
        weights,
        kv,
        compute,
        int(fleet["replicas"]) + int(fleet["spare"]),
        int(fleet["prefill_replicas"]),
        int(fleet["max_rows"]),
        int(fleet["max_step_tokens"]),
        int(fleet["block_tokens"]),
        int(fleet["longest_request"]),
        bool(document["hit_rate"]),
    )
