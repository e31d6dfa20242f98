"""Which layout? Every layout of the space is priced; the fastest that fit are reported.

In: a `Question`. Out: a `Search`: `Candidate`s, best first, and counts. A layout here is a template
of schemes on a mesh (`space`), a number of microbatches, a pipeline schedule and a remat policy.
Those whose weights and saved activations alone exceed the memory are only counted (`least_memory`).
All others are priced at once (`sweep`), with the same formulas as one by one (`price_one`): a test
tries everything, one by one, and finds the same winner with the same time.

Of times within a thousandth, the layout with less time in collectives is first: what overlaps
today may not tomorrow.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from rooflight.costs.choose import TIE
from rooflight.costs.mesh_sweep import Bools, Floats, Ints
from rooflight.errors import ModelError, ShardingError
from rooflight.models.graph.count import training_flops
from rooflight.models.layout.rules import Layout, scheme_axes
from rooflight.plan.training.forecast.basis import MATMUL_CONSTANTS
from rooflight.plan.training.forecast.evidence import (
    context_axes,
    least_context,
    most_experts,
    scheme_name,
    seen_reaches,
)
from rooflight.plan.training.forecast.sweep import Forecasts
from rooflight.plan.training.forecast.works import ForecastSetting, LeastSeconds
from rooflight.plan.training.memory.count import Memory
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.least import LeastMemory
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.search.cache import (
    Asked,
    Divided,
    SearchCache,
    divided,
    search_cache_of,
)
from rooflight.plan.training.search.candidate import (
    Candidate,
    Question,
    counted_seconds,
    evidence_key,
    extrapolation_of,
    held_by,
    price_one,
    question_basis,
)
from rooflight.plan.training.search.options import allowed_on, options_of, policies_of, schedules_of
from rooflight.plan.training.search.ranked import Placements, Ranked, in_order, rank
from rooflight.plan.training.search.region import or_all
from rooflight.plan.training.search.space import in_modes
from rooflight.plan.training.time.compose import Seconds, StepSweep, layer_times
from rooflight.plan.training.time.parts import bubble_part
from rooflight.plan.training.time.sweep import Points, Workload, saved_by

_MANY = 4_000  # placements of a template before which the limit is worth another look
_LOOKED_AT = 64  # sizes of faster layouts of a new kind whose memory is counted
NEAR = 1.02  # of forecasts so near to each other the simplest layout is the answer
_SAFE = 1.003  # what is slower than the last to be reported by this is in a later band


@dataclass(frozen=True, slots=True)
class Search:
    """The best candidates, and how many layouts divide and were priced, and could not fit."""

    candidates: tuple[Candidate, ...]
    num_priced: int  # those among them that are too large, or too slow in any case
    num_too_large: int  # weights, optimizer and saved activations exceed the HBM
    num_too_slow: int  # meshes with microbatches left out: FLOPs and bubble alone take too long
    num_unfit: int  # of those looked at more closely
    worth_measuring: Candidate | None = None  # forecast faster than the first, without evidence


Watch = Callable[[int, int, int], None]  # templates done, templates in all, layouts priced


def search_training(question: Question, *, count: int = 8, watch: Watch | None = None) -> Search:
    """Prices every layout and returns the `count` fastest that fit, no two of the same degrees."""
    found = SearchState(question, count)
    layouts = layouts_of(question)
    size: object = None
    for done, layout in enumerate(layouts):
        is_large = cache_of(question).placed(layout).meshes.count > _MANY
        if size != (size := (bool(layout.stages), layout.text.count("="))) or is_large:
            found.tighten()
        found.add(layout)
        if watch:
            watch(done + 1, len(layouts), found.num_priced)
    return found.search()


def why_behind(candidate: Candidate, first: Candidate) -> str:
    """Why a layout that is forecast to be faster is not the first."""
    if candidate.unseen and not first.unseen:
        what = ", ".join(candidate.unseen)
        return f"worth measuring: fewer than two measured runs have {what}, so it ranks behind"
    if first.step_s <= candidate.step_s * NEAR:
        return f"within {NEAR - 1:.0%}, where the simpler layout is the plan"
    return "it would win, were it in the space that is searched"


def layouts_of(question: Question) -> list[Layout]:
    """The templates of the space; on one chip they are all the same."""
    layouts = list(or_all(question.region.layouts, cache_of(question).templates))
    return layouts if question.on.num_chips > 1 else layouts[:1]


def divides(question: Question) -> bool:
    """Whether some layout divides the model and the batch; nothing is priced."""
    cache, sizes = cache_of(question), sizes_of(question)
    return any(
        allowed_on(micro, found.few, question).any()
        for layout in layouts_of(question)
        if (found := divided(question, sizes, cache.placed(layout)))
        for micro, _ in options_of(layout, question)
    )


@dataclass(frozen=True, slots=True)
class _JudgedOption:
    """A schedule with a remat policy: what it holds at least of each size, and where it may win."""

    micro: Microbatching
    remat: Remat
    nbytes: Floats
    may: Bools


class SearchState:
    """What a search has priced so far."""

    def __init__(self, question: Question, count: int) -> None:
        self._question, self._count = question, count
        self._sizes = sizes_of(question)
        self._ranked: list[Ranked] = []
        self._held: dict[object, Memory] = {}
        self._alone: dict[tuple[int, int], Candidate] = {}  # by chunk and place in it
        self.limit_s = math.inf  # what is slower need not be priced
        self.num_priced = self._too_large = self._too_slow = 0

    def add(self, layout: Layout) -> None:
        """Prices all layouts of a template, but for those that take too long in any case."""
        question, cache = self._question, cache_of(self._question)
        alike = bool(question.region.lies_on)  # one of them is asked for by its dims
        found = divided(question, self._sizes, cache.placed(layout, alike=alike))
        options = self._may_win(found) if found else []
        if found and options:
            for points, of in found.points(np.logical_or.reduce([o.may for o in options])):
                self._ranked.append(_rank(question, points, of, options, cache.asked(layout)))

    def _may_win(self, found: Divided) -> list[_JudgedOption]:
        """The options that may fit and be reported, by size."""
        question, few, times = self._question, found.few, found.times
        must_fit, hbm_bytes = question.region.must_fit, question.usable_bytes
        is_bounded = question.rank == "forecast" and self.limit_s < math.inf
        soonest = LeastSeconds(few, _setting(question)) if is_bounded else None
        least = LeastMemory(few, question.recipe, question.framework)
        soon = least_seconds(question, few.num_stages, few.count) <= self.limit_s
        self._too_slow += int(times[~soon].sum())
        options: list[_JudgedOption] = []
        for micro, remat in options_of(few.layout, question):
            may = allowed_on(micro, few, question) & soon
            nbytes = least.bytes(micro, remat)
            fits = nbytes <= hbm_bytes if must_fit else nbytes > 0
            self.num_priced += int(times[may].sum())
            self._too_large += int(times[may & ~fits].sum())
            may &= fits
            if soonest and may.any():
                may &= soonest.seconds(micro, remat) <= self.limit_s
            if may.any():
                options.append(_JudgedOption(micro, remat, nbytes, may))
        return options

    def tighten(self) -> None:
        """Limits what comes to the last that would be reported, or be as simple as the first."""
        best = [counted_seconds(self._question, c) for c in self.best()]
        if best and len(best) == self._count and self._question.region.must_fit:
            self.limit_s = _SAFE * max(*best, NEAR * min(best))

    def best(self) -> list[Candidate]:
        """The first of each degrees that fit; most of those in order differ in placement only."""
        found: dict[object, Candidate] = {}
        for number, index in in_order(self._ranked):
            chunk = self._ranked[number]
            degrees = chunk.degrees(index)
            is_next = degrees not in found and self._fit(degrees, chunk, index)
            if is_next and self._is_priced((number, index)):
                found[degrees] = self._priced((number, index))
            if len(found) == self._count:
                break
        return list(found.values())

    def _priced(self, at: tuple[int, int]) -> Candidate:
        """A layout on its own, once: the limit and the answer ask for the same ones."""
        if at not in self._alone:
            chunk, index = self._ranked[at[0]], at[1]
            candidate = price_one(self._question, *chunk.named(index))
            self._alone[at] = self._checked(candidate, float(chunk.expected_s[index]))
        return self._alone[at]

    def _checked(self, candidate: Candidate, swept_s: float) -> Candidate:
        """Priced alone and among all, a layout takes the same time."""
        alone_s = candidate.step_s
        if not math.isclose(alone_s, swept_s, rel_tol=TIE):
            raise ModelError(
                f"{candidate.layout.text} on {candidate.mesh} takes {alone_s} s alone and"
                f" {swept_s} s in the search"
            )
        return candidate

    def _fit(self, degrees: object, chunk: Ranked, index: int) -> bool:
        fits = self._memory(degrees, chunk, index).fits or not self._question.region.must_fit
        if not fits:
            chunk.drop(index)
        return fits

    def _memory(self, degrees: object, chunk: Ranked, index: int) -> Memory:
        """Memory does not depend on where the axes lie, so each size is asked once."""
        key = degrees, chunk.points.layout.text, *chunk.option_at(index)
        if key not in self._held:
            self._held[key] = held_by(self._question, *chunk.named(index))
        return self._held[key]

    def search(self) -> Search:
        best = self._simplest_first(self.best())
        worth = self._worth_measuring(best) if best else None
        unfit = sum(not held.fits for held in self._held.values())
        return Search(tuple(best), self.num_priced, self._too_large, self._too_slow, unfit, worth)

    def _worth_measuring(self, best: Sequence[Candidate]) -> Candidate | None:
        """The fastest forecast of a kind that nobody measured, if it is faster by 2 %."""
        if self._question.rank == "roofline" or not self._question.region.must_fit:
            return None
        talking = self._in_modes(best)
        first = min((best[0], *talking), key=lambda c: c.step_s * (NEAR if c in talking else 1))
        found: list[tuple[float, int, int]] = []
        for number, chunk in enumerate(self._ranked):
            is_new = chunk.counted_s > chunk.expected_s
            at = np.flatnonzero(is_new & (chunk.expected_s * NEAR < first.step_s))
            found += [(float(chunk.expected_s[i]), number, int(i)) for i in at]
        most = len(self._held) + _LOOKED_AT
        for _, number, index in sorted(found):
            chunk = self._ranked[number]
            is_fit = self._fit(chunk.degrees(index), chunk, index)
            if is_fit and self._is_priced((number, index)):
                return self._priced((number, index))
            if len(self._held) > most:
                break
        return first if first in talking else None

    def _in_modes(self, best: Sequence[Candidate]) -> list[Candidate]:
        """Those in other modes that divide and fit; a mode saves what is exposed at most."""
        question, found = self._question, list[Candidate]()
        for plain in best if question.region.layouts is None else ():
            parts = plain.forecast.breakdown
            if (plain.step_s - parts.exposed_s - parts.bubble_s) * NEAR > best[0].step_s:
                continue
            for layout in in_modes(plain.layout, question.framework):
                with suppress(ShardingError):
                    found.append(price_one(question, layout, plain.mesh, plain.micro, plain.remat))
        return [candidate for candidate in found if candidate.memory.fits]

    def _simplest_first(self, best: list[Candidate]) -> list[Candidate]:
        """Of forecasts within 2 % of the first, the simplest is the answer; the rest keep order."""
        if self._question.rank == "roofline" or not best or not self._question.region.must_fit:
            return best
        first = self._simplest()
        others = [c for c in best if c.degrees != first.degrees]
        return [first, *others][: self._count]

    def _simplest(self) -> Candidate:
        """Tensors in a node, the fewest chips for a sequence, stages and axes, the most room."""
        seen: dict[object, None] = {}
        found: tuple[tuple[float, ...], tuple[int, int]] | None = None
        limit_s = math.inf
        for number, index in in_order(self._ranked):
            chunk = self._ranked[number]
            if chunk.counted_s[index] > limit_s * _SAFE:  # bands are no wider than that
                break
            degrees = chunk.degrees(index)
            if chunk.counted_s[index] > limit_s or degrees in seen:
                continue
            if not self._fit(degrees, chunk, index) or not self._is_priced((number, index)):
                continue
            limit_s = min(limit_s, NEAR * float(chunk.counted_s[index]))
            seen[degrees] = None
            room = self._memory(degrees, chunk, index).headroom_bytes
            key = (*chunk.complexity(index), -room)
            found = min(found or (key, (number, index)), (key, (number, index)), key=lambda f: f[0])
        assert found is not None, "there is a best one"
        return self._priced(found[1])

    def _is_priced(self, at: tuple[int, int]) -> bool:
        """Whether every matmul of a layout has a way with whole blocks."""
        try:
            self._priced(at)
        except ShardingError:
            return False
        return True


def sizes_of(question: Question) -> Workload:
    """Forecasts tell the dtype of matmuls from that of activations, the roofline does not."""
    q = question
    saved = saved_by(q.graph, or_all(q.region.remats, policies_of(q)))
    dtype = q.stored if q.rank == "forecast" else q.dtype
    return Workload(q.graph, q.batch, q.seq, dtype, saved)


def cache_of(question: Question) -> SearchCache:
    return search_cache_of(question.graph, question.on, question.seq, question.framework)


def least_seconds(question: Question, stages: Ints, counts: Ints) -> Floats:
    """No layout with so many stages and microbatches is faster, whatever its mesh.

    Matmuls take at least their FLOPs over the peak, times what the constants leave of it, on the
    average stage; then comes the shortest bubble of the schedules. At the roofline a backward of
    our pipeline runs its stage again, and has as many FLOPs by itself.
    """
    q, chip = question, question.on.chip
    flops = training_flops(q.graph, batch=q.batch, seq=q.seq, causal=True)
    ideal_s = flops / q.on.num_chips / chip.peak_flops(chip.matmul_dtype(q.dtype.name))
    schedules = or_all(q.region.schedules, schedules_of(q.framework))
    if q.rank == "roofline":
        shortest = min(1 / v for _, v in schedules)
        return ideal_s * (1 + (stages - 1) * shortest / counts)
    values = question_basis(q).values
    best = max(values[name] for name in (*MATMUL_CONSTANTS, "attention"))
    in_step = q.framework.in_step
    bubbles = [bubble_part(Microbatching(1, s, v), stages, in_step=in_step) for s, v in schedules]
    return ideal_s / best * (1 + np.min(bubbles, axis=0) / counts)


def _rank(
    question: Question, points: Points, of: Ints, options: Sequence[_JudgedOption], asked: Asked
) -> Ranked:
    """Prices every option of a chunk; `of` is the size of each point."""
    points = points.on_own_meshes()
    price = _pricer(question, points, asked)
    doubt = np.broadcast_to(_doubt(question, points), len(points))
    placements = Placements(of, doubt > 1)
    columns: list[tuple[Floats, ...]] = []
    at: list[Ints] = []
    for option in options:
        priced = price(option.micro, option.remat)
        whole_s = priced.total * doubt
        is_timed = question.region.must_fit
        smallest = option.nbytes[of] + whole_s / (1 + whole_s) / 2  # of one size the fastest place
        ranked = rank(whole_s, priced.collectives) if is_timed else smallest
        chosen = placements.least(ranked, whole_s)
        at.append(chosen[option.may[of[chosen]]])
        columns.append(tuple(column[at[-1]] for column in (ranked, priced.total, whole_s)))
    keyed, seconds, counted = map(np.concatenate, zip(*columns, strict=True))
    where, which = np.concatenate(at), np.repeat(np.arange(len(at)), list(map(len, at)))
    sized = of[where] * len(options) + which
    used, place = np.unique(where, return_inverse=True)  # points drop what they worked out
    few, named = points.only(used), [(option.micro, option.remat) for option in options]
    return Ranked(few, named, keyed, seconds, counted, place, which, sized)


def _doubt(question: Question, points: Points) -> Floats:
    """What a step counts for in the ranking: more, by the interval, where no run is like it."""
    key = evidence_key(question)
    seen = seen_reaches(*key)
    if question.rank == "forecast" and points.layout.modes:
        return np.full(1, math.exp(extrapolation_of(question)))
    if question.rank == "roofline" or not seen:
        return np.ones(1)
    context = points.split(context_axes(points.layout))
    is_new = points.meshes.reaches_beyond(seen)[points.mesh_of]
    far = [points.meshes.goes_far(n) for n in scheme_axes(points.layout) if scheme_name(n) == "cp"]
    near, beyond = (least_context(*key, is_far=is_far) for is_far in (False, True))
    least = np.where(far[0][points.mesh_of], beyond, near) if far else near
    is_new = is_new | (context > 1) & (question.seq / context < least)
    is_new = is_new | (points.split(scheme_axes(points.layout).get("ep", ())) > most_experts(*key))
    return np.where(is_new, math.exp(extrapolation_of(question)), 1.0)


def _setting(question: Question) -> ForecastSetting:
    values = question_basis(question).values
    return ForecastSetting(question.dtype, values, in_step=question.framework.in_step)


Price = Callable[[Microbatching, Remat], Seconds]


def _pricer(question: Question, points: Points, asked: Asked) -> Price:
    """Seconds of a step and of its collectives on every point, by what the question ranks by."""
    if question.rank == "roofline":
        return StepSweep(points, layer_times(points, asked), question.overlap).seconds
    return Forecasts(points, asked, _setting(question)).seconds
