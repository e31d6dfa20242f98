"""`Wanted`: what somebody asks a layout to have, and the part of the space that has it.

In: text such as `fsdp=64,tp=8` or `remat=none`. Out: a `Region` to search, and in words what of it
the space leaves out. A scheme that is not named is free; a degree of 1 means without it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rooflight.algebra import ways
from rooflight.errors import ParseError, UnknownNameError, UsageError
from rooflight.graph import SCHEDULES as EVERY_SCHEDULE
from rooflight.graph import Graph
from rooflight.graph.layout import SCHEMES, Layout, parse_layout
from rooflight.plan.bubble import IN_STEP
from rooflight.plan.candidate import Candidate
from rooflight.plan.region import Region
from rooflight.plan.remat import Remat, parse_remat
from rooflight.plan.search import POLICIES, SCHEDULES
from rooflight.plan.space import patterns
from rooflight.specs.slice import Slice
from rooflight.units import parse_count

_ALSO = {"tp": ("tp", "sp")}  # people say tp for both: they split the same weights
_AXES = "XYZWVUT"
_OTHER = ("remat", "microbatches", "schedule")
_HINT = "write degrees such as fsdp=64,tp=8, or remat=none, microbatches=8, schedule=1f1b"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Degrees by scheme, and options; None is free."""

    text: str
    degrees: Mapping[str, int]
    remat: Remat | None = None
    num_microbatches: int | None = None
    schedule: str | None = None


def parse_wanted(text: str, graph: Graph) -> Wanted:
    """Reads `tp=16`, `fsdp=64,tp=8`, `remat=none`, `pp=4,schedule=zb-h1`.

    >>> from rooflight.graph import model_graph
    >>> from rooflight.specs import load_model
    >>> dict(parse_wanted("fsdp=64, tp=8", model_graph(load_model("llama3-8b"))).degrees)
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
    remat, count, schedule = (found.pop(name, None) for name in _OTHER)
    if schedule is not None and schedule not in EVERY_SCHEDULE:
        raise UnknownNameError("pipeline schedule", schedule, EVERY_SCHEDULE)
    if schedule is not None and schedule not in IN_STEP:
        raise UsageError(
            f"our program does not run {schedule} in a number of rounds that a search could price",
            hint=f"ask for {', '.join(IN_STEP)}; `rooflight pipeline {schedule}` simulates it",
        )
    return Wanted(
        text.replace(" ", ""),
        {name: _degree(name, value, graph) for name, value in found.items()},
        None if remat is None else parse_remat(remat, graph),
        None if count is None else _at_least_one("microbatches", count),
        schedule,
    )


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
        raise UsageError(f"{name}={value} is no number of parts", hint=_HINT)
    return number


def scheme_axes(layout: Layout) -> dict[str, tuple[str, ...]]:
    """The mesh axes of each scheme of a layout.

    >>> scheme_axes(parse_layout("fsdp=XZ,sp=Y"))
    {'fsdp': ('X', 'Z'), 'sp': ('Y',)}
    """
    parts = [part.partition("=") for part in layout.text.split(",")]
    return {name: tuple(axes) for name, _, axes in parts}


def region_of(wanted: Wanted, graph: Graph, on: Slice) -> tuple[Region, tuple[str, ...]]:
    """The layouts that have what is wanted, and what of it the space leaves out."""
    outside: list[str] = []
    chosen = list(_placed(_in_space(wanted, graph), on))
    if not chosen:
        chosen = list(_placed(_beyond(wanted), on))
        if chosen:
            outside.append("no pattern of the space has exactly these schemes")
    if wanted.remat and wanted.remat.name not in {r.name for r in POLICIES}:
        outside.append(f"remat {wanted.remat.name} is not searched")
    schedule = wanted.schedule
    known = tuple(s for s in SCHEDULES if s[0] == schedule)
    if schedule and not known:
        outside.append(f"schedule {schedule} is not searched")
        known = ((schedule, 1),)
    region = Region(
        layouts=tuple(layout for layout, _ in chosen),
        axes={layout.text: axes for layout, axes in chosen},
        remats=(wanted.remat,) if wanted.remat else None,
        schedules=known if schedule else None,
        num_microbatches=wanted.num_microbatches,
    )
    return region, tuple(outside)


_Sized = tuple[Layout, Mapping[str, int]]  # and the sizes that its axes must have


def _in_space(wanted: Wanted, graph: Graph) -> Iterator[_Sized]:
    for layout in patterns(graph):
        axes = _sizes(wanted, scheme_axes(layout))
        if axes is not None and (layout.stages or not wanted.schedule):
            yield layout, axes


def _placed(sized: Iterable[_Sized], on: Slice) -> Iterator[_Sized]:
    """Those that some mesh of the slice has."""
    for layout, axes in sized:
        if Region(axes={layout.text: axes}).placements(layout, on).count:
            yield layout, axes


def _sizes(wanted: Wanted, schemes: Mapping[str, tuple[str, ...]]) -> dict[str, int] | None:
    """The sizes that the degrees give to a pattern's axes; None where it has other schemes."""
    sizes: dict[str, int] = {}
    for name, degree in wanted.degrees.items():
        here = [axes[0] for n in _ALSO.get(name, (name,)) for axes in (schemes.get(n),) if axes]
        if bool(here) != (degree > 1) or any(sizes.get(a, degree) != degree for a in here):
            return None
        sizes |= dict.fromkeys(here, degree)
    return sizes


def _beyond(wanted: Wanted) -> Iterator[_Sized]:
    """Exactly these schemes, the chips that are left over going to data; ep lies inside data."""
    degrees = {n: d for n, d in wanted.degrees.items() if d > 1}
    free = iter(_AXES)
    axes = {name: next(free) for name in degrees}
    sizes = {axes[name]: degree for name, degree in degrees.items()}
    data = next((n for n in ("fsdp", "dp") if n in degrees), None)
    if data and "ep" in degrees and degrees[data] % degrees["ep"] == 0:
        sizes[axes[data]] //= degrees["ep"]
        axes[data] += axes["ep"]
    text = ",".join(f"{name}={axis}" for name, axis in axes.items())
    rest = next(free)
    more = [f"{name}={rest}" for name in ("fsdp", "dp") if name not in wanted.degrees]
    for layout in filter(None, (text, *(f"{text},{m}".lstrip(",") for m in more))):
        yield parse_layout(layout), sizes


def degrees_text(candidate: Candidate) -> str:
    """Schemes with their degrees: `fsdp=64 x sp=8`."""
    schemes = scheme_axes(candidate.layout).items()
    return " x ".join(f"{name}={ways(axes, candidate.mesh.axes)}" for name, axes in schemes)
