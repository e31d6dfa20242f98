"""Which layouts have been measured: how far each scheme reached in published runs.

In: the index that `rooflight calibrate` writes beside the calibrations. Out: for a framework and a
kind of model, the reaches that were seen (`tp@node`, `dp@far`), how few tokens of a sequence
context parallelism left to a chip, and the runs nearest to a layout. A layout with what no run had
is an extrapolation: its interval is wider, and it is not the answer unless it wins by more.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflight.algebra.notation import Axes
from rooflight.algebra.shapes import ways
from rooflight.hardware import calibration
from rooflight.hardware.mesh import FAR, Mesh
from rooflight.hardware.slice import Slice, TorusDim
from rooflight.models.layout.rules import Layout, scheme_axes
from rooflight.plan.training.forecast.basis import ENGINES, engine_family

EVIDENCE_FILE = Path(calibration.__file__).parent / "calibrations" / "evidence.json"
_TWICE = 2  # runs: what was measured once may be chance
_SAME = {"sp": "tp", "qtp": "tp", "mp": "tp", "ulysses": "cp"}  # split the same tensors


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One published run: where, under what, how split, and how far its forecast was off."""

    id: str
    chip: str
    kind: str  # tpu or gpu
    engine: str
    blocks: str
    chips: int
    seq: int
    degrees: Mapping[str, int]
    reach: frozenset[str]
    residual: float  # log of measured over forecast, held out


@dataclass(frozen=True, slots=True)
class MeasuredPairs:
    """Pairs of layouts of one model: what 80 % of the differences of their errors stay within."""

    within: float  # in logs
    pairs: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All runs; by dense and experts, how far forecasts are off without runs of the same kind."""

    runs: tuple[MeasuredRun, ...]
    extrapolated: Mapping[str, float]
    paired: Mapping[str, MeasuredPairs]


@lru_cache(maxsize=1)
def evidence() -> Evidence:
    """The index as it ships."""
    document = json.loads(EVIDENCE_FILE.read_text(encoding="utf-8"))
    paired = {blocks: MeasuredPairs(**found) for blocks, found in document["paired"].items()}
    return Evidence(tuple(map(_run, document["runs"])), document["extrapolated"], paired)


def _run(fields: dict[str, Any]) -> MeasuredRun:
    values: dict[str, Any] = dict(fields)
    values["reach"] = frozenset(fields["reach"])
    return MeasuredRun(**values)


def tier_name(dims: Iterable[str], on: Slice) -> str:
    """The farthest of some physical dims: torus or dcn, node or far."""
    is_far = any(dim in FAR for dim in dims)
    if any(isinstance(d, TorusDim) for d in on.dims):
        return "dcn" if is_far else "torus"
    return "far" if is_far else "node"


def scheme_name(scheme: str) -> str:
    """People say tp for all that split heads and widths, and cp for all that split positions."""
    return _SAME.get(scheme, scheme)


def reach_of(layout: Layout, mesh: Mesh) -> frozenset[str]:
    """How far each scheme of a layout goes.

    >>> from rooflight.models.layout.rules import parse_layout
    >>> from rooflight.hardware.mesh import parse_mesh
    >>> mesh = parse_mesh("Z=16@leaf,Y=8@node", on="h100:8x16")
    >>> sorted(reach_of(parse_layout("dp=Z,sp=Y"), mesh))
    ['dp@far', 'tp@node']
    """
    found: set[str] = set()
    for scheme, axes in scheme_axes(layout).items():
        parts = [s.dim for axis in axes for s in mesh.segments.get(axis, ()) if s.size > 1]
        if parts:
            found.add(f"{scheme_name(scheme)}@{tier_name(parts, mesh.slice)}")
    return frozenset(found)


def context_axes(layout: Layout) -> Axes:
    """The axes that split positions."""
    schemes = scheme_axes(layout).items()
    return tuple(a for name, axes in schemes if scheme_name(name) == "cp" for a in axes)


def degrees_of(layout: Layout, mesh: Mesh) -> dict[str, int]:
    """How many ways each scheme of a layout splits: `{"dp": 16, "tp": 8}`."""
    schemes = scheme_axes(layout).items()
    return {scheme_name(name): ways(axes, mesh.axes) for name, axes in schemes}


@lru_cache(maxsize=64)
def seen_reaches(kind: str, framework: str, blocks: str) -> frozenset[str]:
    """Every reach that two runs of the framework had on this kind of chip; dense models' count too.

    Empty where nobody measured the framework there: then nothing is near and nothing is far.
    """
    seen = Counter(reach for run in _runs_of(kind, framework, blocks) for reach in run.reach)
    return frozenset(reach for reach, count in seen.items() if count >= _TWICE)


def _goes_far(reach: Iterable[str], scheme: str) -> bool:
    return not {f"{scheme}@far", f"{scheme}@dcn"}.isdisjoint(reach)


@lru_cache(maxsize=64)
def least_context(kind: str, framework: str, blocks: str, *, is_far: bool) -> float:
    """The fewest tokens of a sequence per chip that context parallelism left in two runs."""
    runs = [r for r in _runs_of(kind, framework, blocks) if _goes_far(r.reach, "cp") == is_far]
    tokens = sorted(run.seq / run.degrees["cp"] for run in runs if "cp" in run.degrees)
    return tokens[_TWICE - 1] if len(tokens) >= _TWICE else 0.0  # the reach says it all


def _runs_of(kind: str, framework: str, blocks: str) -> list[MeasuredRun]:
    engine = ENGINES.get(framework, {}).get(kind, framework)
    return [
        r
        for r in evidence().runs
        if r.kind == kind and engine_family(r.engine) == engine and r.blocks in (blocks, "dense")
    ]


@lru_cache(maxsize=64)
def most_experts(kind: str, framework: str, blocks: str) -> float:
    """The most ranks over which two runs spread the experts of a layer."""
    runs = _runs_of(kind, framework, blocks)
    ranks = sorted((run.degrees["ep"] for run in runs if "ep" in run.degrees), reverse=True)
    return ranks[_TWICE - 1] if len(ranks) >= _TWICE else math.inf  # the reach says it all


def unseen_of(layout: Layout, mesh: Mesh, seq: int, key: tuple[str, str, str]) -> tuple[str, ...]:
    """What of a layout no run had: a mode, and where there are runs to compare with how far."""
    seen, reach = seen_reaches(*key), reach_of(layout, mesh)
    modes = [f"{scheme}:{mode}" for scheme, mode in layout.modes.items()]  # no row tells of one
    if not seen:
        return tuple(modes)
    unseen, least = modes + sorted(reach - seen), least_context(*key, is_far=_goes_far(reach, "cp"))
    context = degrees_of(layout, mesh).get("cp", 1)
    if context > 1 and seq / context < least:
        unseen.append(f"cp of {seq / context:g} tokens per chip ({least:g} measured)")
    experts, most = degrees_of(layout, mesh).get("ep", 1), most_experts(*key)
    if experts > most:
        unseen.append(f"ep of {experts} ranks ({most:g} measured)")
    return tuple(unseen)


def nearest_runs(
    layout: Layout, mesh: Mesh, blocks: str, count: int = 3
) -> tuple[MeasuredRun, ...]:
    """The published runs most like a layout: reaches in common first, then degrees and chips."""
    reach, degrees, chips = reach_of(layout, mesh), degrees_of(layout, mesh), mesh.slice.num_chips

    def distance(run: MeasuredRun) -> float:
        names = {*degrees, *run.degrees}
        steps = sum(abs(math.log2(degrees.get(n, 1) / run.degrees.get(n, 1))) for n in names)
        return 4 * len(reach ^ run.reach) + steps + abs(math.log2(chips / run.chips))

    kind = mesh.slice.chip.kind
    runs = [r for r in evidence().runs if r.kind == kind and r.blocks == blocks]
    return tuple(sorted(runs, key=distance)[:count])
