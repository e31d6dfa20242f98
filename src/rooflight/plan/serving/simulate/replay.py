"""The step model of one published row: a model, a chip and how an engine was told to split.

Models of the same chips, ways and dtypes are derived once, so a row costs well under a millisecond.
"""

from rooflight.errors import PlacementError
from rooflight.hardware.catalog import load_chip
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.derive_model import known_model
from rooflight.plan.serving.step.layout import KvSplit, Precision, ServingLayout
from rooflight.plan.serving.step.model import StepModel

_BF16 = Precision()


def slice_name(chip: str, num_chips: int) -> str:
    """The usual slice of so many chips: full NVLink domains, or a torus as near a square as can be.

    >>> slice_name("h100", 16), slice_name("v5e", 8), slice_name("gb200", 48)
    ('h100:8x2', 'v5e:2x4', 'gb200:48')
    """
    found = load_chip(chip)
    if found.torus:
        return f"{chip}:{'x'.join(map(str, _near_square(num_chips, found.torus.dims)))}"
    domain = found.switched.domain_chips if found.switched else 1
    if num_chips <= domain:
        return f"{chip}:{num_chips}"
    if num_chips % domain:
        raise PlacementError(
            f"{num_chips} chips are not whole nodes of {domain} {found.title}",
            hint=f"use {-(-num_chips // domain) * domain} chips",
        )
    return f"{chip}:{domain}x{num_chips // domain}"


def _near_square(num_chips: int, dims: int) -> tuple[int, ...]:
    if dims == 1:
        return (num_chips,)
    root = round(num_chips ** (1 / dims))
    side = next(n for n in range(max(root, 1), 0, -1) if num_chips % n == 0)
    return (side, *_near_square(num_chips // side, dims - 1))


def replayed_model(
    model: ModelSpec,
    chip: str,
    *,
    tp: int = 1,
    pp: int = 1,
    dp_attention: int = 1,
    ep: int = 1,
    precision: Precision = _BF16,
    kv: KvSplit = "heads",
) -> StepModel:
    """The step model of an engine: a stage has tp * dp_attention chips, for experts as well.

    Experts are split `ep` ways and their width over the rest, so moe_tp = tp * dp_attention / ep.

    >>> from rooflight.models.presets import load_model
    >>> step = replayed_model(load_model("llama3.1-70b"), "h100", tp=8).generate([4096] * 32)
    >>> f"{step.lower_s * 1e3:.1f} ms, {step.binds}"
    '6.8 ms, weights'
    """
    layout = ServingLayout(tp=tp, pp=pp, dp=dp_attention, ep=ep, kv=kv)
    return known_model(model, slice_name(chip, layout.num_chips), layout, precision)
