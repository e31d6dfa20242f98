"""The least seconds of a replica that a request can take: what lets a search skip simulations.

In: a step cost, the limits of a replica, the work of a mean request, a TPOT that most must keep.
Out: a `Bound`. Steps are averaged over all that a replica makes; the seconds of a step are convex
in its sizes, so the average step costs no more than the average of steps (Jensen). It holds while

    more work never makes a step shorter, and a larger step never costs more for each token
    rows on average are at most those of the pool, and of the TPOT for the rows that must keep it

Experts bend the cost the other way (few are touched by few tokens), so for them the bound is
tokens alone with what prompts add to them for sure, or prompts alone where that is more.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rooflight.batching.request import Limits
from rooflight.errors import UsageError
from rooflight.models.spec import ModelSpec, Moe
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.layout import KV_SPLITS, KvSplit, ServingLayout

_MOST_STAGES = 8
_MOST_2D = 16  # ways of D: past them little of a weight's row is left


@dataclass(frozen=True, slots=True)
class RequestWork:
    """Of a mean request: what its prompt and its tokens ask of a step model."""

    input_tokens: float
    output_tokens: float
    prompt_tokens: float  # that are computed: not cached
    pairs: float  # positions that these attend to, summed
    own_pairs: float  # of these, positions that are computed too
    row_steps: float  # steps in which it decodes
    positions: float  # that it reads in these, summed
    own_positions: float  # of these, that no other request shares
    longest: int  # positions of the longest request
    late_share: float  # of all row-steps, those of the requests that may miss the SLO


def work_of(arrivals: Iterable[Arrival], *, share: float) -> RequestWork:
    """The means over a stream of which the share `share` must be served within the SLO."""
    requests = list(arrivals)
    count, steps = len(requests), sorted(a.output_tokens - 1 for a in requests)
    late = steps[round(share * count) :]  # at worst those that decode longest
    cached = [a.segment_tokens * len(a.segments) for a in requests]
    reads = [_positions(a) for a in requests]
    shared = [(a.output_tokens - 1) * c for a, c in zip(requests, cached, strict=True)]
    prompts = [(a.input_tokens, c) for a, c in zip(requests, cached, strict=True)]
    return RequestWork(
        input_tokens=sum(a.input_tokens for a in requests) / count,
        output_tokens=sum(a.output_tokens for a in requests) / count,
        prompt_tokens=sum(n - c for n, c in prompts) / count,
        pairs=sum(n * (n + 1) - c * (c + 1) for n, c in prompts) / 2 / count,
        own_pairs=sum((n - c) * (n - c + 1) for n, c in prompts) / 2 / count,
        row_steps=sum(steps) / count,
        positions=sum(reads) / count,
        own_positions=(sum(reads) - sum(shared)) / count,
        longest=max(a.input_tokens + a.output_tokens for a in requests),
        late_share=sum(late) / max(1, sum(steps)),
    )


def _positions(arrival: Arrival) -> int:
    """Token i of the answer reads the prompt and i more."""
    gaps = arrival.output_tokens - 1
    return gaps * arrival.input_tokens + gaps * (gaps + 1) // 2


@dataclass(frozen=True, slots=True)
class Bound:
    """Replica-seconds of a request, at least: its prompt, its tokens, both on one replica."""

    prefill_s: float
    cached_s: float  # of this, what cached tokens are attended to for
    generate_s: float
    together_s: float
    rows: float  # that decode at once, at most on average
    rows_by: str  # what limits them


def least_seconds(
    cost: StepCost,
    limits: Limits,
    work: RequestWork,
    *,
    tpot_s: float,
    unit: int,
    is_convex: bool,
    interference: float = 0.0,
) -> Bound:
    """The bound; `unit` rows are dealt to ranks and microbatches at once, fewer take as long.

    `interference` is the part of a chunk's own time that it adds to a step of rows, at least.
    """
    asked = MeanSteps(cost, limits, work, unit)
    rows, rows_by = asked.most_rows(tpot_s)
    prefill_s, generate_s = asked.prefill_s(work.pairs), asked.generate_s(rows)
    added_s = generate_s + interference * prefill_s
    together_s = max(prefill_s, added_s, asked.mixed_s(rows) if is_convex else 0.0)
    cached_s = prefill_s - asked.prefill_s(work.own_pairs)
    return Bound(prefill_s, cached_s, generate_s, together_s, rows, rows_by)


@dataclass(frozen=True, slots=True)
class MeanSteps:
    """Steps of mean requests, so many rows and tokens of prompts in each."""

    cost: StepCost
    limits: Limits
    work: RequestWork
    unit: int

    def room(self) -> tuple[float, str]:
        """Rows on average, at most: of the batch and of the pool."""
        work, found = self.work, [(float(self.limits.max_rows), "sequences of a step")]
        if work.own_positions:
            held = self.limits.pool_tokens * work.row_steps / work.own_positions
            found.append((held, "KV cache"))
        return min(found)

    def most_rows(self, tpot_s: float) -> tuple[float, str]:
        """Of the room, what keeps the TPOT for all but the late ones."""
        rows, by = self.room()
        fast = most_rows_within(lambda n: self.step(n, 0, 0.0), int(rows), tpot_s)
        if fast < int(rows):
            return fast + self.work.late_share * (rows - fast), "TPOT"
        return rows, by

    def prefill_s(self, pairs: float) -> float:
        """A prompt that attends to so many positions, with others in the largest steps."""
        tokens, prompt = self.limits.max_step_tokens, self.work.prompt_tokens
        return self.step(0, tokens, tokens * pairs / prompt) / tokens * prompt

    def generate_s(self, rows: float) -> float:
        """Tokens alone, in the largest steps."""
        if not self.work.row_steps or rows <= 0:
            return 0.0
        return self.work.row_steps * self.step(self._whole(rows), 0, 0.0) / rows

    def mixed_s(self, rows: float) -> float:
        """Steps that all have the same share of both, less what a step pays once for a kind."""
        work = self.work
        if not work.row_steps or rows <= 0:
            return 0.0
        share = work.prompt_tokens / work.row_steps
        rows = min(rows, self.limits.max_step_tokens / (1 + share))
        whole = self._whole(rows)
        tokens, each = int(whole * share), work.pairs / work.prompt_tokens
        if not tokens:
            return 0.0
        chunk_s = self.step(whole, 1, each) - self.step(whole, 0, 0.0)
        row_s = self.step(1, tokens, tokens * each) - self.step(0, tokens, tokens * each)
        step_s = self.step(whole, tokens, tokens * each) - max(0.0, chunk_s) - max(0.0, row_s)
        return work.row_steps / rows * step_s

    def _whole(self, rows: float) -> int:
        """Whole units, or as little as a step can have."""
        return int(rows // self.unit) * self.unit or 1

    def step(self, rows: int, tokens: int, pairs: float) -> float:
        """Seconds of one."""
        work = self.work
        context = work.positions / work.row_steps if rows and work.row_steps else 0.0
        return self.cost.seconds(
            decode_rows=rows,
            kv_tokens=int(rows * context),
            prefill_tokens=tokens,
            prefill_kv_tokens=int(pairs),
        )


def most_rows_within(step_s: Callable[[int], float], most: int, limit_s: float) -> int:
    """The most rows, up to `most`, whose step takes no longer; 0 where not even one does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if step_s(middle) <= limit_s else (low, middle)
    return low


def candidate_layouts(model: ModelSpec, num_chips: int) -> tuple[ServingLayout, ...]:
    """Tensor, pipeline, data-parallel attention with experts, and 2D weight-stationary layouts.

    >>> from rooflight.models.presets import load_model
    >>> [str(c) for c in candidate_layouts(load_model("llama3-8b"), 4)]
    ['tp=4', 'tp=2,ws=2', 'ws=4', 'tp=2,pp=2', 'pp=4']
    """
    found: list[ServingLayout] = []
    for stages in _divisors(num_chips, _MOST_STAGES):
        found += _stage_layouts(model, stages, num_chips // stages)
    if not found:
        raise UsageError(
            f"no layout of {model.name} uses {num_chips:,} chips as one replica",
            hint="give a smaller slice, or name a layout with --layout",
        )
    return tuple(dict.fromkeys(found))


def _stage_layouts(model: ModelSpec, pp: int, chips: int) -> Iterator[ServingLayout]:
    is_mixture = any(isinstance(b.mlp, Moe) for b in model.blocks)
    heads = math.gcd(*(b.attention.num_heads for b in model.blocks))
    for tp in sorted(_divisors(math.gcd(chips, heads), heads), reverse=True):
        rest = chips // tp
        if is_mixture:
            for ep in dict.fromkeys((1, chips)):
                for kv in _kv_splits(model, tp):
                    yield ServingLayout(tp=tp, pp=pp, dp=rest, ep=ep, kv=kv)
        elif rest == 1 or (pp == 1 and rest <= _MOST_2D):
            for kv in _kv_splits(model, tp):
                yield ServingLayout(tp=tp, pp=pp, ws=rest, kv=kv)


def _kv_splits(model: ModelSpec, tp: int) -> tuple[KvSplit, ...]:
    """Where heads are enough to split the cache by, nothing else is needed."""
    has_heads = not any(b.attention.latent for b in model.blocks)
    kv_heads = min(b.attention.num_kv_heads for b in model.blocks) if has_heads else 1
    return KV_SPLITS if tp > kv_heads else ("heads",)


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]
