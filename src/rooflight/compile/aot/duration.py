"""How long a compile will take, said between lowering and compiling: CPU seconds by counts of ops.

In: the text of a lowered program, how far to go, and what compiles took on this machine before (the
records of the cache). Out: CPU seconds, None where there are no rates, as for GPUs.

    seconds = machine * chip * (start + op ops + dot matmuls + convolution n + kernel kernels)

`seconds.toml` has the rates, of one machine. `machine` is how long compiles took on this one for a
second there: those for the same chip first, then all.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

_OP = re.compile(r'^ +(?:%\S+(?:, %\S+)* = )?("?[a-z]+\.(\w+).*)', re.MULTILINE)
_VALUE = re.compile(r"%[\w#:]+")
_KERNEL = "tpu_custom_call"
_LATEST = 32  # records that say how fast this machine is
_KNOWN_S = 30.0  # of compiles, that the rates count for beside them


def count_ops(text: str) -> dict[str, int]:
    """Matmuls and convolutions of a lowered program, each once however often its loop runs; other
    ops and kernels once for all that are alike, for the compiler makes the same code of them.

    >>> count_ops("    %3 = stablehlo.add %1, %2 : f32\\n    %4 = stablehlo.add %3, %3 : f32")
    {'start': 1, 'op': 1, 'dot': 0, 'convolution': 0, 'kernel': 0}
    """
    found = _OP.findall(text)
    alike = {_VALUE.sub("%", line) for line, _ in found}
    names = Counter(name for _, name in found)
    return {
        "start": 1,
        "op": len(alike),
        "dot": names["dot_general"],
        "convolution": names["convolution"],
        "kernel": sum(_KERNEL in line for line in alike),
    }


def forecast_s(lowered: Mapping[str, Any], store: Path) -> float | None:
    """CPU seconds that a compile of a lowered program will take on this machine."""
    seconds = _standard_s(lowered)
    if seconds is None:
        return None
    found = list(_records(lowered, store))
    same = [one for one in found if one[0] == lowered.get("chip")]
    return seconds * _slowness(same, _slowness(found, 1.0))


def _slowness(records: Sequence[tuple[str, float, float]], before: float) -> float:
    """Seconds here for one there: what was known before, until much more was compiled."""
    took_s = sum(took for _, took, _ in records)
    return (_KNOWN_S * before + took_s) / (_KNOWN_S + sum(there for *_, there in records))


def _standard_s(lowered: Mapping[str, Any]) -> float | None:
    """On the machine of the rates; records of an older version say nothing."""
    known, ops = _known(), lowered.get("ops")
    rates = known["rates"].get(str(lowered.get("platform")), {}).get(str(lowered.get("until")))
    if not rates or not ops:
        return None
    slower = known["chips"].get(str(lowered.get("chip")), 1.0)
    return slower * sum(rate * ops[name] for name, rate in rates.items())


def _records(like: Mapping[str, Any], store: Path) -> Iterator[tuple[str, float, float]]:
    """The latest compiles of the same kind: for which chip, seconds here and there."""
    latest = sorted(map(_read, store.glob("*/summary.json")), key=lambda found: -found[0])
    same = ("platform", "until", "versions")
    alike = [
        one
        for _, one in latest[: 8 * _LATEST]
        if one.get("outcome") == "compiled" and all(one.get(n) == like.get(n) for n in same)
    ]
    for one in alike[:_LATEST]:
        standard = _standard_s(one)
        if standard:
            yield one["chip"], one["cpu_s"] - one["lowered_cpu_s"], standard


def _read(path: Path) -> tuple[float, dict[str, Any]]:
    """When it was written, and what; nothing of one that another process removes, or writes."""
    try:
        found: object = json.loads(path.read_text())
        known = cast("dict[str, Any]", found) if isinstance(found, dict) else None
        return (path.stat().st_mtime, known) if known else (0.0, {})
    except (OSError, ValueError):
        return 0.0, {}


@cache
def _known() -> dict[str, Any]:
    return tomllib.loads((files("rooflight.compile.aot") / "seconds.toml").read_text())
