"""`LayoutConstraint`: what somebody asks a layout to have, and the part of the space that has it.

In: text such as `fsdp=64,tp=8` or `remat=none`. Out: a `Region` to search, and in words what of it
the space leaves out. A scheme that is not named is free; a degree of 1 means without it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rooflight.errors import ParseError, UnknownNameError, UsageError
from rooflight.hardware.slice import Slice
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import (
    SCHEMES,
    Layout,
    parse_layout,
    scheme_axes,
    split_mode,
    with_mode,
)
from rooflight.models.layout.schedules import SCHEDULES as EVERY_SCHEDULE
from rooflight.plan.training.forecast.evidence import degrees_of, scheme_name
from rooflight.plan.training.memory.framework import Framework
from rooflight.plan.training.memory.remat import Remat, parse_remat
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.options import policies_of, schedules_of
from rooflight.plan.training.search.region import Region, Ways
from rooflight.plan.training.search.space import templates
from rooflight.plan.training.time.stages import IN_STEP
from rooflight.units import parse_count

_ALSO = {"tp": ("tp", "sp", "qtp")}  # people say tp for all: they split the same weights
_AXES = "XYZWVUT"
_OTHER = ("remat", "microbatches", "schedule", "vp")
_TIERS = {"node": False, "torus": False, "far": True, "leaf": True, "spine": True, "dcn": True}
_HINT = "write degrees such as fsdp=64,tp=8@node, or remat=none, microbatches=8, pp=4,vp=2"


@dataclass(frozen=True, slots=True)
class LayoutConstraint:
    """Degrees by scheme, and options; None is free."""

    text: str
    degrees: Mapping[str, int]
    remat: Remat | None = None
    num_microbatches: int | None = None
    schedule: str | None = None
    virtual: int | None = None  # chunks of layers of an interleaved stage
    far: Mapping[str, bool] = field(default_factory=dict[str, bool])  # tp@node: not far
    lies_on: Mapping[str, str] = field(default_factory=dict[str, str])  # fsdp@x4+y: exactly there
    modes: Mapping[str, str] = field(default_factory=dict[str, str])  # cp=8:ring


def parse_constraint(text: str, graph: Graph) -> LayoutConstraint:
    """Reads `tp=16`, `fsdp=64,cp=8:ring@torus`, `remat=none`, `pp=4,schedule=zb-h1`.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.presets import load_model
    >>> dict(parse_constraint("fsdp=64, tp=8", model_graph(load_model("llama3-8b"))).degrees)
    {'fsdp': 64, 'tp': 8}
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value or name in found:
            raise ParseError(f"{part!r} is not NAME=VALUE, each name once", hint=_HINT)
        if name not in (*SCHEMES, *_OTHER):
            raise UnknownNameError("scheme or option", name, (*SCHEMES, *_OTHER))
        found[name] = value
    remat, count, schedule, virtual = (found.pop(name, None) for name in _OTHER)
    where = {scheme_name(n): v.partition("@")[2] for n, v in found.items() if "@" in v}
    far = {name: _TIERS[tier] for name, tier in where.items() if tier in _TIERS}
    lies_on = {name: dims for name, dims in where.items() if name not in far}
    split = {name: split_mode(name, value.partition("@")[0]) for name, value in found.items()}
    if schedule is not None and schedule not in EVERY_SCHEDULE:
        raise UnknownNameError("pipeline schedule", schedule, EVERY_SCHEDULE)
    if schedule is not None and schedule not in IN_STEP:
        raise UsageError(
            f"our program does not run {schedule} in a number of rounds that a search could price",
            hint=f"ask for {', '.join(IN_STEP)}; `rooflight pipeline {schedule}` simulates it",
        )
    return LayoutConstraint(
        text.replace(" ", ""),
        {name: _degree(name, value, graph) for name, (value, _) in split.items()},
        None if remat is None else parse_remat(remat, graph),
        None if count is None else _at_least_one("microbatches", count),
        schedule,
        None if virtual is None else _at_least_one("vp", virtual),
        far,
        lies_on,
        {name: mode for name, (_, mode) in split.items() if mode},
    )


def _sizes(scheme: str, text: str, on: Slice) -> dict[str, int]:
    """The parts of physical dims that `x4+y` names; a dim without a number is all of it."""
    whole = {d.name: d.size for d in on.dims}
    parts = [re.fullmatch(r"([a-z]+)(\d*)", part) for part in text.split("+")]
    found = {p[1]: int(p[2] or whole.get(p[1], 0)) for p in parts if p}
    if len(found) < len(parts) or not set(found) <= set(whole):
        raise ParseError(
            f"{scheme}@{text} must name a tier ({', '.join(_TIERS)}) or dims of {on}"
            f" ({', '.join(whole)}), each once",
            hint="write tp=8@node, or fsdp=32@x4+y as the table of `plan train` does",
        )
    return found


def _degree(name: str, value: str, graph: Graph) -> int:
    degree = _at_least_one(name, value)
    if name == "ep" and degree > 1 and not any(op.kind == "route" for op in graph.ops):
        raise UsageError(
            "the model has no routed experts to split", hint="leave ep out, or write ep=1"
        )
    return degree


def _at_least_one(name: str, value: str) -> int:
    number = parse_count(value, what=name)
    if not 1 <= number <= 10**9:
        raise UsageError(f"{name} must be from 1 to 1e9, got {value}", hint=_HINT)
    return number


def region_of(wanted: LayoutConstraint, question: Question) -> tuple[Region, tuple[str, ...]]:
    """The layouts that have what is wanted, and what of it the space leaves out."""
    outside: list[str] = []
    on, framework = question.on, question.framework
    chosen = list(_in_modes(wanted, _placed(_in_space(wanted, question.graph, framework), on)))
    if not chosen:
        chosen = list(_in_modes(wanted, _placed(_beyond(wanted), on)))
        if chosen:
            outside.append("no template of the space has exactly these schemes")
    if wanted.remat and wanted.remat.name not in {r.name for r in policies_of(question)}:
        outside.append(f"remat {wanted.remat.name} is not searched")
    schedule = wanted.schedule
    every = schedules_of(framework)
    known = tuple(s for s in every if s[0] == schedule)
    if schedule and not known:
        outside.append(f"schedule {schedule} is not searched")
        known = ((schedule, 1),)
    if wanted.virtual:
        name = "interleaved" if wanted.virtual > 1 else schedule or "1f1b"
        known = ((name, wanted.virtual),)
        if known[0] not in every:
            outside.append(f"{wanted.virtual} chunks of layers per stage are not searched")
    region = Region(
        layouts=tuple(layout for layout, _ in chosen),
        ways={layout.text: made for layout, made in chosen},
        remats=(wanted.remat,) if wanted.remat else None,
        schedules=known or None,
        num_microbatches=wanted.num_microbatches,
        far=wanted.far,
        lies_on={name: _sizes(name, text, on) for name, text in wanted.lies_on.items()},
    )
    return region, tuple(outside)


_Sized = tuple[Layout, Ways]  # and the ways that its axes must make


def _in_space(wanted: LayoutConstraint, graph: Graph, framework: Framework) -> Iterator[_Sized]:
    for layout in templates(graph, framework):
        made = _ways(wanted, scheme_axes(layout))
        if made is not None and (layout.stages or not (wanted.schedule or wanted.virtual)):
            yield layout, made


def _placed(sized: Iterable[_Sized], on: Slice) -> Iterator[_Sized]:
    """Those that some mesh of the slice has."""
    for layout, made in sized:
        if Region(ways={layout.text: made}).placements(layout, on).count:
            yield layout, made


def _in_modes(wanted: LayoutConstraint, sized: Iterable[_Sized]) -> Iterator[_Sized]:
    """The same, schemes communicating as they are asked to."""
    for layout, made in sized:
        for name, mode in wanted.modes.items():
            here = [n for n in _ALSO.get(name, (name,)) if n in scheme_axes(layout)]
            layout = next((with_mode(layout, n, mode) for n in here), layout)
        yield layout, made


def _ways(wanted: LayoutConstraint, schemes: Mapping[str, tuple[str, ...]]) -> Ways | None:
    """The ways that a template's axes make of the degrees; None where it has other schemes."""
    made: dict[tuple[str, ...], int] = {}
    for name, degree in wanted.degrees.items():
        here = [axes for n in _ALSO.get(name, (name,)) for axes in (schemes.get(n),) if axes]
        if bool(here) != (degree > 1) or any(made.get(a, degree) != degree for a in here):
            return None
        made |= dict.fromkeys(here, degree)
    return made


def _beyond(wanted: LayoutConstraint) -> Iterator[_Sized]:
    """Exactly these schemes, the chips that are left over going to data; ep lies inside data."""
    degrees = {n: d for n, d in wanted.degrees.items() if d > 1}
    free = iter(_AXES)
    axes = {name: next(free) for name in degrees}
    data = next((n for n in ("fsdp", "dp") if n in degrees), None)
    if data and "ep" in degrees and degrees[data] % degrees["ep"] == 0:
        axes[data] += axes["ep"]
    made = {tuple(axes[name]): degree for name, degree in degrees.items()}
    text = ",".join(f"{name}={axis}" for name, axis in axes.items())
    rest = next(free)
    more = [f"{name}={rest}" for name in ("fsdp", "dp") if name not in wanted.degrees]
    for layout in filter(None, (text, *(f"{text},{m}".lstrip(",") for m in more))):
        yield parse_layout(layout), made


def degrees_text(candidate: Candidate) -> str:
    """Schemes with their degrees: `fsdp=64 x cp=8:ring`, chunks of an interleaved stage `vp=4`."""
    sizes = degrees_of(candidate.layout, candidate.mesh)
    modes = {scheme_name(name): f":{mode}" for name, mode in candidate.layout.modes.items()}
    every = (sizes | _chunks(candidate)).items()
    return " x ".join(f"{name}={size}{modes.get(name, '')}" for name, size in every)


def placed_text(candidate: Candidate) -> str:
    """Degrees and where they lie, as `--layout` reads them: `dp=64@leaf,tp=8@node`."""
    layout, mesh = candidate.layout, candidate.mesh
    whole = {d.name: d.size for d in mesh.slice.dims}
    shown: list[str] = []
    for scheme, axes in scheme_axes(layout).items():
        sizes: dict[str, int] = {}
        for part in (s for axis in axes for s in mesh.segments[axis] if s.size > 1):
            sizes[part.dim] = sizes.get(part.dim, 1) * part.size
        dims = [d if n == whole[d] else f"{d}{n}" for d, n in sizes.items()]
        name = scheme if scheme == "ulysses" else scheme_name(scheme)  # unlike a ring of cp
        mode = f":{layout.modes[scheme]}" if scheme in layout.modes else ""
        degree = f"{name}={math.prod(sizes.values())}{mode}"
        shown.append(f"{degree}@{'+'.join(dims)}" if dims else degree)
    return ",".join((*shown, *(f"{name}={n}" for name, n in _chunks(candidate).items())))


def asked_text(candidate: Candidate) -> str:
    """The same with all that was chosen beside it, so that the answer is this very candidate."""
    micro = candidate.micro
    is_named = candidate.num_stages > 1 and micro.virtual == 1
    options = {"schedule": micro.schedule} if is_named else {}
    options |= {"microbatches": f"{micro.count}", "remat": candidate.remat.name}
    return ",".join((placed_text(candidate), *(f"{n}={value}" for n, value in options.items())))


def _chunks(candidate: Candidate) -> dict[str, int]:
    return {"vp": candidate.micro.virtual} if candidate.micro.virtual > 1 else {}
