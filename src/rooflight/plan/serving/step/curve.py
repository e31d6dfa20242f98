"""`StepCurve`: a `StepModel` boiled down to a few numbers, for those who ask millions of times.

In: a `StepModel`. Out: seconds of a step by its sizes, equal to the model's expected time (tests
hold one against the other). Matmuls with weights are max(a n, b + c n) in the tokens n of a
step: their sum is one line between sorted bends, so a lookup finds it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rooflight.models.graph.ops import Mask
from rooflight.plan.serving.step.layout import Phase
from rooflight.plan.serving.step.model import Counted, Stage, StepModel
from rooflight.plan.serving.step.terms import CommTerm, ExpertReads, MatmulTerm

_VISITED = ("experts", "adapters")
_PHASES: tuple[Phase, ...] = ("generate", "prefill")


@dataclass(frozen=True, slots=True)
class Bends:
    """A sum of max(a n, b + c n): a line between any two neighbouring bends."""

    at: tuple[float, ...]
    intercepts: tuple[float, ...]
    slopes: tuple[float, ...]

    def seconds(self, n: float) -> float:
        i = bisect_right(self.at, n)
        return self.intercepts[i] + self.slopes[i] * n


def bends(lines: Iterable[tuple[float, float, float]]) -> Bends:
    """Adds up max(a n, b + c n) for (a, b, c): from n = b / (a - c) on, a n is the larger.

    >>> bends([(2.0, 3.0, 1.0), (0.5, 0.0, 1.0)]).seconds(10)
    30.0
    """
    rows = list(lines)
    turns = sorted((b / (a - c), b, a - c) for a, b, c in rows if a > c)
    falls = accumulate((-b for _, b, _ in turns), initial=sum(b for _, b, _ in rows))
    rises = accumulate((d for _, _, d in turns), initial=sum(c for _, _, c in rows))
    return Bends(tuple(t[0] for t in turns), tuple(falls), tuple(rises))


Visited = tuple[tuple[int, float, float, ExpertReads], ...]  # count, a, c, what is read


@dataclass(frozen=True, slots=True)
class Shared:
    """Matmuls with weights, and collectives of tokens, that meet the same tokens."""

    decodes: bool
    prefills: bool
    split: int
    is_head: bool
    matmuls: Bends  # latencies and bandwidth of the collectives among them
    experts: Visited
    adapters: Visited

    def seconds(self, n: float, sequences: float) -> float:
        """Of n tokens; each of the busiest rank's `sequences` has an adapter."""
        total = self.matmuls.seconds(n)
        for held, visitors in ((self.experts, n), (self.adapters, sequences)):
            for count, flops_s, activations_s, reads in held:
                read = reads.read_s * reads.touched(visitors) + activations_s * n
                total += count * max(flops_s * n, read)
        return total


@dataclass(frozen=True, slots=True)
class AttentionCurve:
    """max(a pairs, b positions + c tokens) for each kind of matmul, and d for each position."""

    split: int
    window: int | None
    matmuls: tuple[tuple[int, float, float, float], ...]  # count, a, b, c
    position_s: float  # what collectives of the cache take
    latency_s: float

    def seconds(self, tokens: float, positions: float, pairs: float) -> float:
        total = self.position_s * positions
        for count, pair_s, position_s, token_s in self.matmuls:
            total += count * max(pair_s * pairs, position_s * positions + token_s * tokens)
        return total


@dataclass(frozen=True, slots=True)
class StageCurve:
    """What a stage does for the tokens of a step, and for the attention of each phase."""

    shared: tuple[Shared, ...]
    decode: tuple[AttentionCurve, ...]
    chunk: tuple[AttentionCurve, ...]
    queries: int = 1  # tokens of each sequence that decodes: more than one with draft tokens
    known: dict[int, float] = field(default_factory=dict[int, float], compare=False, repr=False)

    def seconds(self, rows: int, kv_tokens: float, chunk: "_Chunk | None") -> float:
        if chunk is None:
            if rows not in self.known:
                self.known[rows] = self._shared_s(rows, 0.0)
            total = self.known[rows]
        else:
            total = self._shared_s(rows, chunk.tokens) + sum(map(chunk.seconds, self.chunk))
        if rows:
            for attention in self.decode:
                total += _decode_s(attention, rows, kv_tokens, self.queries)
        return total

    def _shared_s(self, rows: int, tokens: float) -> float:
        total = 0.0
        for group in self.shared:
            dealt = _dealt(rows, group.split) if group.decodes and rows else 0.0
            n, sequences = dealt * self.queries, dealt / group.split
            if group.prefills and tokens:
                n += 1 if group.is_head else tokens
                sequences += 1 / group.split
            total += group.seconds(n, sequences) if n else 0.0
        return total


def _dealt(rows: int, split: int) -> float:
    """The rows of the busiest of `split` ranks, times the ranks."""
    return rows if split < 2 else -(-rows // split) * split


def _decode_s(attention: AttentionCurve, rows: int, kv_tokens: float, queries: int) -> float:
    window = attention.window
    seen = kv_tokens if window is None else min(kv_tokens, rows * window)
    share = _dealt(rows, attention.split) / rows
    return attention.latency_s + share * attention.seconds(rows * queries, seen, seen * queries)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Tokens of a prompt, the positions they attend to in all, and the last of them."""

    whole: int
    tokens: float
    share: float  # of the tokens that one microbatch has
    kv_tokens: float
    last: float

    def seconds(self, attention: AttentionCurve) -> float:
        window = attention.window
        seen, pairs = self.last, self.kv_tokens
        if window is not None:
            seen = min(seen, window + self.whole - 1)
            pairs = Mask(window).pairs(self.whole, round(self.last), causal=True)
        share = self.share
        return attention.latency_s + attention.seconds(self.tokens, seen * share, pairs * share)


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A `StepCost`: the expected seconds of steps of any size."""

    decode: tuple[StageCurve, ...]
    prefill: tuple[StageCurve, ...]
    mixed: tuple[StageCurve, ...]
    num_stages: int
    overhead_s: float

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        """Times a step of decoding sequences, of a prefill chunk, or of both (see `StepCost`)."""
        stages, parts = self.mixed, self.num_stages
        rows, seen = decode_rows, float(kv_tokens)
        if parts > 1 and rows:
            rows = -(-rows // parts)
            seen *= rows / decode_rows
        chunk: _Chunk | None = None
        if prefill_tokens:
            n = prefill_tokens
            last = prefill_kv_tokens / n + (n - 1) / 2
            chunk = _Chunk(n, n / parts, 1 / parts, prefill_kv_tokens, last)
            stages = stages if rows else self.prefill
        elif rows:
            stages = self.decode
        else:
            return 0.0
        slowest = max(stage.seconds(rows, seen, chunk) for stage in stages)
        return parts * (slowest + self.overhead_s)

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        """What all stages but one add to a chunk that is a single microbatch (see `StepCost`)."""
        n = prefill_tokens
        last = prefill_kv_tokens / n + (n - 1) / 2
        one = _Chunk(n, float(n), 1.0, prefill_kv_tokens, last)
        slowest = max(stage.seconds(0, 0.0, one) for stage in self.prefill)
        chain_s = self.num_stages * (slowest + self.overhead_s)
        step_s = self.seconds(
            decode_rows=0, kv_tokens=0, prefill_tokens=n, prefill_kv_tokens=prefill_kv_tokens
        )
        return max(0.0, chain_s - step_s)


def step_curve(model: StepModel, *, queries: int = 1) -> StepCurve:
    """Boils a model down, for steps with so many tokens of each sequence that decodes."""
    found = {
        phases: tuple(dict.fromkeys(_stage_curve(stage, queries) for stage in stages))
        for phases, stages in model.stages.items()
    }
    decode, prefill = (found[frozenset[Phase]((phase,))] for phase in _PHASES)
    mixed = found[frozenset(_PHASES)]
    return StepCurve(decode, prefill, mixed, model.layout.pp, model.overhead_s)


def _stage_curve(stage: Stage, queries: int) -> StageCurve:
    shared: dict[tuple[frozenset[Phase], int, bool], list[Counted]] = {}
    attention: dict[tuple[Phase, int, int | None], list[Counted]] = {}
    for counted in stage:
        term = counted.term
        units = term.unit if isinstance(term, CommTerm) else term.work
        if units == "tokens":
            key = (counted.phases, max(term.split, 1), term.part == "head")
            shared.setdefault(key, []).append(counted)
        else:
            (phase,) = counted.phases
            attention.setdefault((phase, max(term.split, 1), term.window), []).append(counted)
    pairs = [(phase, _attention(s, w, terms)) for (phase, s, w), terms in attention.items()]
    return StageCurve(
        tuple(_shared(phases, s, h, terms) for (phases, s, h), terms in shared.items()),
        tuple(a for phase, a in pairs if phase == "generate"),
        tuple(a for phase, a in pairs if phase == "prefill"),
        queries,
    )


def _shared(
    phases: frozenset[Phase], split: int, is_head: bool, terms: Sequence[Counted]
) -> Shared:
    lines: list[tuple[float, float, float]] = []
    visited = {part: dict[tuple[float, float, ExpertReads], int]() for part in _VISITED}
    for counted in terms:
        n, term = counted.count, counted.term
        if isinstance(term, CommTerm):
            lines.append((0.0, n * term.latency_s, n * term.unit_s))
        elif term.experts:
            key = (term.flops_s, term.activations_s, term.experts)
            same = visited[term.part]
            same[key] = same.get(key, 0) + n
        else:
            lines.append((n * term.flops_s, n * term.weights_s, n * term.activations_s))
    return Shared(
        "generate" in phases,
        "prefill" in phases,
        split,
        is_head,
        bends(lines),
        *(tuple((n, *key) for key, n in same.items()) for same in visited.values()),
    )


def _attention(split: int, window: int | None, terms: Sequence[Counted]) -> AttentionCurve:
    matmuls: dict[tuple[float, float, float], int] = {}
    position_s = latency_s = 0.0
    for counted in terms:
        n, term = counted.count, counted.term
        if isinstance(term, MatmulTerm):
            key = (term.flops_s, term.kv_s, term.activations_s)
            matmuls[key] = matmuls.get(key, 0) + n
        else:
            position_s += n * term.unit_s
            latency_s += n * term.latency_s
    found = tuple((n, *key) for key, n in matmuls.items())
    return AttentionCurve(split, window, found, position_s, latency_s)
