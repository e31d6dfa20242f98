"""What if the chip were another? A catalog entry with some rates changed, planned again.

In: a `Question` and text such as `hbm_bandwidth=2x,ici=0.5x,latency=0`. Out: a `WhatIf`, the plan
before and after; and `sensitivity`, how much each rate moves the step time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rooflight.errors import ParseError, UnknownNameError, UsageError
from rooflight.hardware.chip import Chip
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.run import search_training
from rooflight.units import parse_count

Change = Callable[[Chip, float], Chip]
_STEP = 1.1  # a sensitivity is the effect of a tenth more


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn: the catalog facts that it scales, their value here, other names."""

    help: str
    also: tuple[str, ...]
    value: Callable[[Chip], float | None]  # None: this chip has none
    scaled: Change
    is_time: bool = False  # seconds, which may be 0, and less is better


def _flops(chip: Chip, factor: float) -> Chip:
    return replace(chip, flops={name: rate * factor for name, rate in chip.flops.items()})


def _hbm(chip: Chip, factor: float) -> Chip:
    """What the compiler leaves usable grows alike."""
    usable = {k: v * factor for k, v in chip.detail.items() if k == "hbm_usable_bytes"}
    hbm_bytes = None if chip.hbm_bytes is None else round(chip.hbm_bytes * factor)
    return replace(chip, hbm_bytes=hbm_bytes, detail={**chip.detail, **usable})


def _hbm_bandwidth(chip: Chip, factor: float) -> Chip:
    rate = chip.hbm_bytes_per_s
    return replace(chip, hbm_bytes_per_s=None if rate is None else rate * factor)


def _ici(chip: Chip, factor: float) -> Chip:
    torus, switched = chip.torus, chip.switched
    if torus:
        torus = replace(torus, link_bytes_per_s=torus.link_bytes_per_s * factor)
    if switched:
        rate = switched.chip_egress_bytes_per_s * factor
        switched = replace(switched, chip_egress_bytes_per_s=rate)
    return replace(chip, torus=torus, switched=switched)


def _dcn(chip: Chip, factor: float) -> Chip:
    rate, switched = chip.dcn_bytes_per_s_per_host, chip.switched
    if switched:
        switched = replace(switched, nic_bytes_per_s=switched.nic_bytes_per_s * factor)
    per_host = None if rate is None else rate * factor
    return replace(chip, dcn_bytes_per_s_per_host=per_host, switched=switched)


def _latency(chip: Chip, factor: float) -> Chip:
    torus, switched = chip.torus, chip.switched
    if torus:
        torus = replace(torus, hop_s=torus.hop_s * factor)
    if switched:
        switched = replace(
            switched,
            hop_s=switched.hop_s * factor,
            fabric_hop_s=switched.fabric_hop_s * factor,
            launch_s=switched.launch_s * factor,
        )
    hops = {k: v * factor for k, v in chip.detail.items() if k == "dcn_hop_s"}
    return replace(chip, torus=torus, switched=switched, detail={**chip.detail, **hops})


def _link(chip: Chip) -> float | None:
    if chip.torus:
        return chip.torus.link_bytes_per_s
    return chip.switched.chip_egress_bytes_per_s if chip.switched else None


def _between(chip: Chip) -> float | None:
    return chip.switched.nic_bytes_per_s if chip.switched else chip.dcn_bytes_per_s_per_host


def _hop(chip: Chip) -> float | None:
    return chip.torus.hop_s if chip.torus else chip.switched.hop_s if chip.switched else None


KNOBS: Mapping[str, Knob] = {
    "flops": Knob("FLOP/s at every dtype", (), lambda c: c.flops.get("bf16"), _flops),
    "hbm_bandwidth": Knob(
        "bytes per second of the HBM",
        ("hbm_bytes_per_s",),
        lambda c: c.hbm_bytes_per_s,
        _hbm_bandwidth,
    ),
    "hbm": Knob("bytes of HBM", ("hbm_bytes",), lambda c: c.hbm_bytes, _hbm),
    "ici": Knob(
        "bytes per second of a link between chips, or of a GPU into its node",
        ("torus.link_bytes_per_s", "nvlink", "switched.chip_egress_bytes_per_s"),
        _link,
        _ici,
    ),
    "dcn": Knob(
        "bytes per second of a host, or of a GPU out of its node",
        ("dcn_bytes_per_s_per_host", "nic", "switched.nic_bytes_per_s"),
        _between,
        _dcn,
    ),
    "latency": Knob(
        "seconds of a hop", ("torus.hop_s", "switched.hop_s"), _hop, _latency, is_time=True
    ),
}
_NAMES = {name: key for key, knob in KNOBS.items() for name in (key, *knob.also)}


def parse_changes(text: str, chip: Chip) -> dict[str, float]:
    """Reads `hbm_bandwidth=2x,hbm=192GB,latency=0` as a factor for each knob.

    >>> from rooflight.hardware.catalog import load_chip
    >>> parse_changes("hbm_bandwidth=2x, hbm=32GB", load_chip("v5e"))
    {'hbm_bandwidth': 2.0, 'hbm': 2.0}
    """
    factors: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ParseError(f"{part!r} is not NAME=VALUE", hint="write ici=2x,hbm=32GB,latency=0")
        if name not in _NAMES:
            raise UnknownNameError("rate of a chip", name, _NAMES)
        key = _NAMES[name]
        if key in factors:
            raise ParseError(f"{key} is changed twice", hint="name each rate once")
        factors[key] = _factor(key, value, chip)
    return factors


def _factor(key: str, text: str, chip: Chip) -> float:
    knob = KNOBS[key]
    now = knob.value(chip)
    if now is None:
        raise UsageError(
            f"the catalog has no {key} of {chip.title} to change",
            hint=f"change one of {', '.join(k for k, b in KNOBS.items() if b.value(chip))}",
        )
    if text.endswith("x"):
        factor = _number(text.removesuffix("x"), key)
    elif knob.is_time:
        factor = _number(text, key) / now if now else 1.0
    else:
        factor = parse_count(text, what=key) / now
    if not (knob.is_time or factor > 0) or factor > 1e6 or 0 < factor < 1e-6:
        raise UsageError(f"{key} must be a rate, got {text}", hint=f"write {key}=2x")
    return factor


def _number(text: str, key: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e30:
        raise ParseError(f"{key} {text!r} is not a number", hint=f"write a factor: {key}=2x")
    return value


def changed(question: Question, factors: Mapping[str, float]) -> Question:
    """The same question of a chip whose rates are multiplied."""
    chip = question.on.chip
    for key, factor in factors.items():
        chip = KNOBS[key].scaled(chip, factor)
    return replace(question, on=replace(question.on, chip=chip))


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The best layout before and after; None where nothing fits any more."""

    factors: Mapping[str, float]
    before: Candidate
    question: Question  # of the changed chip
    after: Candidate | None

    @property
    def change(self) -> float | None:
        """The new step time as a multiple of the old one."""
        if self.after is None:
            return None
        return self.after.step_s / self.before.step_s


def what_if(question: Question, factors: Mapping[str, float], before: Candidate) -> WhatIf:
    """Plans again on the changed chip."""
    other = changed(question, factors)
    found = search_training(other, count=1).candidates
    return WhatIf(factors, before, other, found[0] if found else None)


def sensitivity(question: Question, before: Candidate) -> tuple[WhatIf, ...]:
    """What a tenth more of each rate does to the step, planned again; largest effect first."""
    chip = question.on.chip
    known = [key for key, knob in KNOBS.items() if knob.value(chip)]
    found = [what_if(question, {key: _STEP}, before) for key in known]
    return tuple(sorted(found, key=lambda w: -abs((w.change or 1.0) - 1.0)))
