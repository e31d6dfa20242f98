"""Every serving layout worth trying of a model on a slice.

In: a model and a number of chips. Out: `ServingLayout`s that use them all.
"""

import math
from collections.abc import Iterator

from rooflight.errors import UsageError
from rooflight.models.spec import ModelSpec, Moe
from rooflight.plan.serving.step.layout import KV_SPLITS, KvSplit, ServingLayout

_MOST_STAGES = 8
_MOST_2D = 16  # ways of D: past them little of a weight's row is left


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
