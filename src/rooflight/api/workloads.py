"""Several workloads on one pool of chips: models, and priorities of requests to the same model.

In: a TOML file or mappings. Out: a `PoolPlan`. Workloads of one model share its replicas.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast  # what a file says, checked by those who read it

from rooflight.api.serving import plan_serving
from rooflight.api.traffic import read_slo
from rooflight.api.values import Number
from rooflight.errors import UsageError
from rooflight.files import read_file
from rooflight.plan.serving.fleet.demand import DemandClass
from rooflight.plan.serving.fleet.plan import Watch
from rooflight.plan.serving.fleet.pool import PoolPlan, pool_fleets
from rooflight.plan.serving.simulate.arrivals import parse_lengths
from rooflight.units import positive, whole

_OWN = ("rate", "isl", "osl", "ttft", "tpot", "priority")  # of a workload, not of its model
_SHARED = (
    *("dtypes", "layout", "rows", "step_tokens", "hit_rate", "burstiness", "percentile"),
    *("confidence", "draft_tokens", "acceptance", "policy", "engine"),
)
_MOST = 100
_MOST_PRIORITY = 1000
_HINT = 'write [[workload]], model = "llama3-8b", rate = 20, isl = "1024", osl = "256"'
_EXAMPLE = f"{_HINT}, and ttft, tpot, priority, dtypes as they are needed"
Workload = Mapping[str, Any]


def plan_workloads(
    workloads: str | Path | Iterable[Workload],
    *,
    on: str | None = None,
    prices: Mapping[str, Number] | str = "on-demand",
    spare: int | str = 1,
    watch: Watch | None = None,
) -> PoolPlan:
    """The cheapest replicas of each model on one pool of chips, with spares that all share.

    Requests of several workloads of a model share its replicas: a smaller `priority` goes first,
    and each keeps an SLO of its own.

    >>> chat = {"model": "llama3.2-1b", "rate": 2, "isl": 512, "osl": 64, "ttft": "1s"}
    >>> batch = {**chat, "ttft": "20s", "priority": 1}
    >>> pool = plan_workloads([chat, batch, {**chat, "model": "llama3.2-3b"}], on="v5e:1x1")
    >>> [fleet.replicas for fleet in pool.fleets], pool.num_chips
    ([1, 1], 3)
    """
    entries = (
        _read(workloads) if isinstance(workloads, str | Path) else [dict(w) for w in workloads]
    )
    if not 1 <= len(entries) <= _MOST:
        raise UsageError(f"{len(entries)} workloads, from 1 to {_MOST} are expected", hint=_EXAMPLE)
    by_model: dict[str, list[Workload]] = {}
    for entry in entries:
        _check(entry)
        by_model.setdefault(str(entry["model"]), []).append(entry)
    asked = [(model, _asked(model, own)) for model, own in by_model.items()]
    return pool_fleets(
        [
            plan_serving(model, on=on, prices=prices, spare=spare, watch=watch, **own)
            for model, own in asked
        ]
    )


def _read(path: str | Path) -> list[Workload]:
    try:
        table = tomllib.loads(read_file(path, hint=_EXAMPLE))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}", hint=_EXAMPLE) from None
    entries: Any = table.get("workload")
    found = cast(list[Any], entries) if isinstance(entries, list) else []
    if not found or not all(isinstance(entry, dict) for entry in found):
        raise UsageError(f"{path} has no [[workload]]", hint=_EXAMPLE)
    return found


def _check(entry: Workload) -> None:
    known = ("model", *_OWN, *_SHARED)
    wrong = [key for key in entry if key not in known]
    missing = [key for key in ("model", "rate", "isl", "osl") if key not in entry]
    if wrong or missing:
        what = f"has {wrong[0]!r}, which is not known" if wrong else f"lacks {missing[0]!r}"
        raise UsageError(f"a workload {what}", hint=f"of {', '.join(known)}; {_HINT}")


def _asked(model: str, entries: list[Workload]) -> dict[str, Any]:
    """What `plan_serving` is asked for all workloads of a model."""
    first = entries[0]
    for key in _SHARED:
        if any(entry.get(key) != first.get(key) for entry in entries):
            raise UsageError(
                f"workloads of {model} differ in {key}, and they share its replicas",
                hint=f"give all of them the same {key}",
            )
    shared = {key: first[key] for key in _SHARED if key in first}
    own = {key: first[key] for key in _OWN if key in first and key != "priority"}
    if len(entries) == 1:
        return {**shared, **own}
    classes = _merged(model, [_class(entry) for entry in entries])
    rate = sum(one.rate for one in classes)
    means = [
        sum(one.rate * lengths.mean for one, lengths in pairs) / rate
        for pairs in ([(c, c.input) for c in classes], [(c, c.output) for c in classes])
    ]
    lengths = {
        key: first[key] if all(e[key] == first[key] for e in entries) else max(1, round(mean))
        for key, mean in zip(("isl", "osl"), means, strict=True)
    }
    slos = {  # the loosest bounds the search
        key: None if any(e.get(key) is None for e in entries) else f"{max(own_s):.9f}s"
        for key, own_s in (
            ("ttft", [c.slo.ttft_s for c in classes]),
            ("tpot", [c.slo.tpot_s for c in classes]),
        )
    }
    return {**shared, **lengths, **slos, "rate": rate, "classes": classes}


def _class(entry: Workload) -> DemandClass:
    return DemandClass(
        whole("priority", entry.get("priority", 0), most=_MOST_PRIORITY, least=0),
        positive("rate", entry["rate"]),
        parse_lengths(str(entry["isl"]), what="isl"),
        parse_lengths(str(entry["osl"]), what="osl"),
        read_slo(entry.get("ttft"), entry.get("tpot")),
    )


def _merged(model: str, classes: list[DemandClass]) -> list[DemandClass]:
    """One SLO for each priority."""
    slos = {one.priority: one.slo for one in classes}
    wrong = next((one for one in classes if slos[one.priority] != one.slo), None)
    if wrong:
        raise UsageError(
            f"two workloads of {model} have priority {wrong.priority} and different SLOs",
            hint="give each a priority of its own: 0 goes first, then 1",
        )
    return classes
