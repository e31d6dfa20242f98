"""Why not that layout? The best one with what is wanted, and by what it loses to the winner.

In: a `Question`, its best `Candidate`, a `LayoutConstraint`. Out: a `WhyNot` with a verdict and its
reason: it does not divide, does not fit, or takes longer, by term. What lies outside the space
of the search is priced all the same, and said to be outside.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import ways
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.derive.algorithm import is_routed
from rooflight.plan.training.questions.fixes import Fix, fixes, together
from rooflight.plan.training.search.cache import placed_tensors
from rooflight.plan.training.search.candidate import Candidate, Question, job_of
from rooflight.plan.training.search.constraint import LayoutConstraint, region_of, scheme_axes
from rooflight.plan.training.search.run import search_training, why_behind
from rooflight.plan.training.time.sweep import contractions
from rooflight.units import format_seconds, format_si

Verdict = Literal["wins", "ties", "faster", "slower", "does not fit", "does not divide"]
_LOOKED_AT = 8  # what holds least is only bounded in a search, so some are counted exactly
SAME = 1.001  # times within a thousandth are tied, as in the search


@dataclass(frozen=True, slots=True)
class TimeTerm:
    """Seconds of a step by what they are spent on: of the layout asked for, and of the best."""

    name: str
    seconds: float
    best_s: float


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The best layout with what is wanted, None where none divides, against the best of all."""

    wanted: LayoutConstraint
    verdict: Verdict
    because: str
    best: Candidate
    candidate: Candidate | None = None
    outside: tuple[str, ...] = ()  # what of it the search leaves out
    terms: tuple[TimeTerm, ...] = ()
    fixes: tuple[Fix, ...] = ()  # to be made one after the other, where it does not fit


def why_not(question: Question, wanted: LayoutConstraint, best: Candidate) -> WhyNot:
    """Searches what is wanted as the whole space is searched, and says why it is not the answer."""
    region, outside = region_of(wanted, question)
    narrow = replace(question, region=region)
    mine = best_of(narrow)
    if mine is None:
        because = _what_does_not_divide(narrow)
        return WhyNot(wanted, "does not divide", because, best, outside=outside)
    if mine.memory.fits:
        return verdict_on(question, wanted, best, mine, outside)
    made, terms = _smallest_fixes(question, mine), _terms(mine, best)
    return WhyNot(wanted, "does not fit", _too_much(mine), best, mine, outside, terms, made)


def best_of(narrow: Question) -> Candidate | None:
    """The fastest of a region that fits, else the one that lacks least; None if none divides."""
    found = search_training(narrow, count=1)
    if found.candidates or not found.num_priced:
        return found.candidates[0] if found.candidates else None
    every = replace(narrow, region=replace(narrow.region, must_fit=False))
    small = search_training(every, count=_LOOKED_AT).candidates
    return min(small, key=lambda c: c.memory.total_bytes)


def verdict_on(
    question: Question,
    wanted: LayoutConstraint,
    best: Candidate,
    mine: Candidate,
    outside: tuple[str, ...] = (),
) -> WhyNot:
    """One layout against the best of all."""
    if not mine.memory.fits:
        return WhyNot(wanted, "does not fit", _too_much(mine), best, mine, outside)
    mine_s, best_s = mine.step_s, best.step_s
    verdict: Verdict = "slower" if mine_s > best_s * SAME else "ties"
    if verdict == "ties" and mine.degrees == best.degrees and mine.remat.name == best.remat.name:
        verdict = "wins"
    elif mine_s * SAME < best_s:
        verdict = "faster"
    because = _reason(verdict, question, mine, best)
    return WhyNot(wanted, verdict, because, best, mine, outside, _terms(mine, best))


def _reason(verdict: Verdict, question: Question, mine: Candidate, best: Candidate) -> str:
    if verdict == "wins":
        return "it is the plan"
    more = mine.time.collectives_s("sum") - best.time.collectives_s("sum")
    if verdict == "ties":
        queue = f"has {format_seconds(more)} more collectives to hide"
        return f"as fast within a thousandth, but {queue}" if more > 0 else "as fast"
    if verdict == "faster":
        return why_behind(mine, best)
    return _what_costs(question, mine, best)


def _what_costs(question: Question, mine: Candidate, best: Candidate) -> str:
    """The term that makes most of the difference; at the roofline collectives overlap."""
    if question.rank == "forecast":
        mine_s, best_s = mine.forecast.breakdown.named, best.forecast.breakdown.named
        most = max(mine_s, key=lambda name: mine_s[name] - best_s[name])
        took = f"{format_seconds(mine_s[most])}, not {format_seconds(best_s[most])}"
        return f"its {most} take{'' if most.endswith('s') else 's'} {took}"
    time, overlap = mine.time, question.overlap
    busy, best_busy = (max(t.matmuls_s, t.collectives_s(overlap)) for t in (time, best.time))
    if time.bubble_s - best.time.bubble_s > busy - best_busy:
        idle = format_seconds(time.bubble_s)
        return f"its {mine.num_stages} stages idle for {idle} while the pipeline fills and drains"
    if time.collectives_s(overlap) > time.matmuls_s:
        axes_s = by_scheme(mine)
        most = max(axes_s, key=lambda name: axes_s[name])
        return (
            f"{format_seconds(time.collectives_s(overlap))} of collectives, most of them over"
            f" {most}, are more than {format_seconds(time.matmuls_s)} of matmuls can hide"
        )
    return _longer_matmuls(mine, best)


def _longer_matmuls(mine: Candidate, best: Candidate) -> str:
    more = mine.time.matmuls_s - best.time.matmuls_s
    if mine.time.recompute_s - best.time.recompute_s > more / 2:
        recomputed = format_seconds(mine.time.recompute_s)
        return f"remat {mine.remat.name} recomputes {recomputed} of matmuls in the backward pass"
    longer = (
        f"its matmuls take {format_seconds(mine.time.matmuls_s)}, not"
        f" {format_seconds(best.time.matmuls_s)}"
    )
    if mine.num_stages > 1:
        return f"{longer}: layers and the output head do not share out evenly among its stages"
    return f"{longer}: their blocks are small, and wait for HBM"


def by_scheme(candidate: Candidate) -> dict[str, float]:
    """Seconds of collectives by the schemes whose axes they run over: `fsdp`, `fsdp+sp`."""
    schemes = scheme_axes(candidate.layout)
    found: dict[str, float] = {}
    for axes, seconds in candidate.time.axes_s.items():
        names = ["/".join(s for s, a in schemes.items() if axis in a) for axis in axes.split("+")]
        label = "+".join(names)
        found[label] = found.get(label, 0.0) + seconds
    return found


def terms(candidate: Candidate) -> dict[str, float]:
    """What a step is spent on, by name; at the roofline matmuls and collectives overlap."""
    if candidate.rank == "forecast":
        return {k: s for k, s in candidate.forecast.breakdown.named.items() if s}
    time = candidate.time
    collectives = {f"collectives, {name}": s for name, s in by_scheme(candidate).items()}
    once = {"matmuls": time.matmuls_s - time.recompute_s, "recomputed": time.recompute_s}
    return {k: s for k, s in (once | collectives | {"bubble": time.bubble_s}).items() if s}


def _terms(mine: Candidate, best: Candidate) -> tuple[TimeTerm, ...]:
    mine_s, best_s = terms(mine), terms(best)
    names = dict.fromkeys((*mine_s, *best_s))
    last = [n for n in names if n == "bubble"]
    return tuple(
        TimeTerm(name, mine_s.get(name, 0.0), best_s.get(name, 0.0))
        for name in (*(n for n in names if n != "bubble"), *last)
    )


def _too_much(held: Candidate) -> str:
    memory = held.memory
    parts = ", ".join(f"{format_si(p.nbytes, 'B')} of {p.name}" for p in memory.largest(2))
    return (
        f"even the one that holds least needs {format_si(memory.total_bytes, 'B')} per chip,"
        f" {format_si(-memory.headroom_bytes, 'B')} more than there is: {parts}"
    )


def _smallest_fixes(question: Question, held: Candidate) -> tuple[Fix, ...]:
    """The cheapest change that suffices, else several on the same chips; empty if nothing does."""
    job = job_of(question, held.layout, held.mesh, held.micro, held.remat)
    enough = [fix for fix in fixes(job) if fix.memory.fits]
    return tuple(enough[:1]) or together(job)


def _what_does_not_divide(question: Question) -> str:
    """The fewest dims that break, over all meshes with the degrees that are wanted."""
    region, on = question.region, question.on
    count = region.num_microbatches or 1
    if question.batch % count:
        return f"{question.batch} sequences do not make {count} equal microbatches"
    broken: list[list[str]] = []
    for layout in region.layouts or ():
        asked = contractions(question.graph, layout)
        tensors = list(placed_tensors(question.graph, layout, asked))
        for axes in _axis_sizes(question, layout):
            broken.append(list(dict.fromkeys(_broken(question, layout, tensors, axes))))
    if not broken:
        shape = " x ".join(str(d.size) for d in on.dims)
        return f"no mesh of {on} has such axes: they must be products of divisors of {shape}"
    fewest = min(broken, key=len)
    return "; ".join(fewest) or "the schedule has no table for so many stages and microbatches"


def _axis_sizes(question: Question, layout: Layout) -> Iterator[Mapping[str, int]]:
    """Sizes of the axes on every mesh of a layout that has the degrees, each once."""
    meshes = question.region.placements(layout, question.on)
    names = (*layout.stages, *layout.split_over)
    if meshes.count:
        for row in np.unique(np.stack([meshes.ways(a) for a in names], axis=1), axis=0):
            yield dict(zip(names, map(int, row), strict=True))


def _broken(
    question: Question, layout: Layout, tensors: list[Tensor], axes: Mapping[str, int]
) -> Iterator[str]:
    """Each dim that an axis breaks, once, with the first tensor that has it."""
    count = question.region.num_microbatches or 1
    dims = dim_sizes(question.graph, batch=question.batch // count, seq=question.seq)
    stages, num_layers = ways(layout.stages, axes), len(question.graph.order)
    if stages > num_layers:
        yield f"{num_layers} layers do not fill {stages} stages"
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for tensor in tensors:
        for dim, over in zip(tensor.dims, tensor.axes, strict=True):
            parts = ways(over, axes)
            if (dim, over) in seen or is_routed(dim) or dims[dim] % parts == 0:
                continue
            seen.add((dim, over))
            yield f"{dim}={dims[dim]} of {tensor} does not split {parts} ways"
