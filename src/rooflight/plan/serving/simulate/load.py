"""`Load`: what one phase of a step works on: tokens, the positions they read, pairs of both.

In: context lengths, or prompts. Out: sums, a windowed layer's among them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rooflight.models.graph.ops import Mask
from rooflight.plan.serving.step.layout import Phase


@dataclass(frozen=True, slots=True)
class Load:
    """Sums over the sequences of a phase; by window, None standing for layers that see all.

    `rows` are whole sequences, the largest pieces that data parallelism can deal out; 0 where the
    tokens are dealt out evenly, whatever sequences they belong to.
    """

    phase: Phase
    tokens: float
    rows: int
    logits: float  # tokens whose next token is asked for
    positions: Mapping[int | None, float] = field(default_factory=dict[int | None, float])
    pairs: Mapping[int | None, float] = field(default_factory=dict[int | None, float])

    def dealt(self, split: int) -> float:
        """The tokens of the busiest of `split` ranks, times the ranks, over all tokens."""
        if split < 2 or not self.rows:
            return 1.0
        return -(-self.rows // split) * split / self.rows

    def part(self, parts: int) -> "Load":
        """The largest of `parts` equal microbatches; sequences stay whole, chunks do not."""
        share = -(-self.rows // parts) / self.rows if self.rows else 1 / parts
        return Load(
            self.phase,
            self.tokens * share,
            -(-self.rows // parts),
            self.logits * share if self.rows else self.logits,
            {w: n * share for w, n in self.positions.items()},
            {w: n * share for w, n in self.pairs.items()},
        )


def generate_load(
    contexts: Sequence[int], windows: Sequence[int | None], *, queries: int = 1
) -> Load:
    """Every sequence makes its next token, or has `queries` proposed ones checked.

    A context counts the positions that the last query sees, its own among them.
    """
    rows, alike = len(contexts), Counter(contexts).items()
    return Load(
        "generate",
        rows * queries,
        rows,
        rows * queries,
        {w: float(sum(n * _seen(c, w, queries) for c, n in alike)) for w in windows},
        {w: float(sum(n * _pairs(queries, c, w) for c, n in alike)) for w in windows},
    )


def even_load(rows: int, kv_tokens: float, windows: Sequence[int | None]) -> Load:
    """The same for `rows` contexts that add up to `kv_tokens`, all of the same length.

    Where layers have windows, unequal contexts would read less: min() bends down.
    """
    mean = kv_tokens / rows
    seen = {w: rows * (mean if w is None else min(mean, w)) for w in windows}
    return Load("generate", rows, rows, rows, seen, seen)


def prefill_load(prompts: Sequence[int], windows: Sequence[int | None], *, cached: int = 0) -> Load:
    """Whole prompts, of each of which the first `cached` positions are there already."""
    alike = Counter(prompts).items()
    return Load(
        "prefill",
        sum(prompts) - len(prompts) * cached,
        len(prompts),
        len(prompts),
        {w: float(sum(n * _seen(p, w, p - cached) for p, n in alike)) for w in windows},
        {w: float(sum(n * _pairs(p - cached, p, w) for p, n in alike)) for w in windows},
    )


def chunk_load(tokens: int, kv_tokens: float, windows: Sequence[int | None]) -> Load:
    """A chunk of a prompt: `tokens` that attend to `kv_tokens` positions in all.

    The chunk of n tokens that ends at position e attends to n e - n (n - 1) / 2, so e follows. Of
    several chunks in one step the positions read are taken as those of one: fewer than they are.
    """
    last = kv_tokens / tokens + (tokens - 1) / 2
    seen = {w: last if w is None else min(last, w + tokens - 1) for w in windows}
    pairs = {w: kv_tokens if w is None else _pairs(tokens, round(last), w) for w in windows}
    return Load("prefill", tokens, 0, 1, seen, pairs)


def _pairs(queries: int, keys: int, window: int | None) -> int:
    return Mask(window).pairs(queries, keys, causal=True)


def _seen(keys: int, window: int | None, queries: int) -> int:
    """Positions read: of a window, those that the first query sees too."""
    return keys if window is None else min(keys, window + queries - 1)
