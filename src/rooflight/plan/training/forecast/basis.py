"""What a forecast rests on: the constants nearest to a chip and a framework, and how far away.

In: a chip, a framework, whether the model has experts. Out: a `Basis`. One's own runs come first,
then measured runs of the same chip and framework, of the same chip, of the same kind of chip. A
chip that nobody measured gets its kind's constants and a wide interval, never the roofline.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rooflight.hardware.calibration import (
    ANY,
    DENSE,
    EXPERTS,
    OWN,
    Calibration,
    host_calibration,
    measured_names,
    own_calibrations,
    shipped_calibrations,
    typical_values,
)
from rooflight.hardware.chip import Chip
from rooflight.models.graph.ops import Graph

Values = Mapping[str, float]
MATMUL_CONSTANTS = ("matmul_bf16", "matmul_fp8", "matmul_mxfp8", "matmul_nvfp4")
PRECISIONS = {"fp8": 1, "int8": 1, "mxfp8": 2, "nvfp4": 3, "fp4": 3, "mxfp4": 3, "int4": 3}

# The catalog alone: every roof is reached and every collective hides behind matmuls.
ROOF: Values = {
    **dict.fromkeys((*MATMUL_CONSTANTS, "experts", "attention", "memory", "dispatch"), 1.0),
    **dict.fromkeys(("near_links", "far_links"), 1.0),
    **dict.fromkeys(("overlap_weights", "overlap_activations", "overlap_experts"), 1.0),
    **dict.fromkeys(("matmul_launch_s", "step_s"), 0.0),
}

Distance = Literal["own", "chip", "family", "framework", "kind", "none"]
# Half-widths of the 80 % interval in logs, where the constants are another framework's, another
# chip's, nobody's: runs of one source, answered without it, are off by about the first.
_LEAST_SPREAD: dict[Distance, float] = {"family": 0.2, "framework": 0.2, "kind": 0.3, "none": 0.7}
# Chips of the same dies with other links, memory or clocks, and who was measured of them.
_FAMILY = {
    **dict.fromkeys(("h800", "h20", "gh200"), "h100"),
    **dict.fromkeys(("gh200-144gb", "h200-nvl"), "h200"),
    "mi325x": "mi300x",
    "mi350x": "mi355x",
}
ENGINES = {"rooflight": {"tpu": "maxtext", "gpu": "megatron"}}  # whose constants ours are nearest


@dataclass(frozen=True, slots=True)
class Basis:
    """Constants, and how near they are: `own` runs, this `chip` and framework, and so on."""

    calibration: Calibration
    distance: Distance

    @property
    def values(self) -> Values:
        return self.calibration.values

    @property
    def spread(self) -> float:
        """Half of the 80 % interval, as a log."""
        return max(self.calibration.spread, _LEAST_SPREAD.get(self.distance, 0.0))

    def interval(self, seconds: float) -> tuple[float, float]:
        """The 80 % interval around a forecast time."""
        return seconds * math.exp(-self.spread), seconds * math.exp(self.spread)

    @property
    def text(self) -> str:
        """`28 runs of h100_sxm under megatron`."""
        one = self.calibration
        if self.distance == "none":
            return "no measured run: typical constants"
        where = f"any {one.chip}" if self.distance == "kind" else one.chip
        under = "" if one.engine == ANY else f" under {one.engine}"
        return f"{one.rows} measured run{'s' if one.rows > 1 else ''} of {where}{under}"


def blocks_of(graph: Graph) -> str:
    """Constants of models with experts differ from those of dense ones."""
    return EXPERTS if graph.per_token else DENSE


def basis_of(chip: Chip, framework: str, *, experts: bool) -> Basis:
    """The nearest constants.

    >>> from rooflight.hardware.catalog import load_chip
    >>> basis_of(load_chip("h100"), "megatron", experts=False).text
    '40 measured runs of h100_sxm under megatron'
    >>> basis_of(load_chip("a100"), "megatron", experts=False).distance
    'chip'
    """
    blocks = EXPERTS if experts else DENSE
    own = own_calibrations().get((chip.name, blocks)) or host_calibration(chip)
    if own and own.blocks == blocks:
        return Basis(own, "own")
    engine = ENGINES.get(framework, {}).get(chip.kind, framework)
    names = (chip.name, *measured_names(chip.name))
    shipped = [c for c in shipped_calibrations().values() if c.blocks == blocks]
    steps = [c for c in shipped if c.engine != "kernel"]
    here = [c for c in steps if c.chip in names]
    ours = [c for c in here if engine_family(c.engine) == engine]
    if ours:
        return Basis(max(ours, key=lambda c: c.rows), "chip")
    related = measured_names(_FAMILY.get(chip.name, ""))
    kin = [c for c in steps if c.chip in related and engine_family(c.engine) == engine]
    if kin:
        return Basis(max(kin, key=lambda c: c.rows), "family")
    kind = [c for c in steps if c.chip == chip.kind and c.engine in (engine, ANY)]
    if kind and any(c.engine == engine for c in kind):
        return Basis(next(c for c in kind if c.engine == engine), "kind")
    if here:
        return Basis(max(here, key=lambda c: c.rows), "framework")
    if kind:
        return Basis(kind[0], "kind")
    return Basis(_typical(chip, blocks), "none")


def engine_family(engine: str) -> str:
    """megatron@25.09 and megatron-2021 are megatron."""
    return engine.partition("@")[0].partition("-20")[0]


def _typical(chip: Chip, blocks: str) -> Calibration:
    return Calibration(chip.name, OWN, blocks, typical_values(), 0, (), "", 0.0, 0.0, 0.7)


def efficiency_name(kind: str, dtype: str) -> str:
    """The constant that divides FLOPs; those of experts have one more."""
    return "attention" if kind == "attention" else MATMUL_CONSTANTS[PRECISIONS.get(dtype, 0)]


def memory_name(kind: str) -> str:
    """The constant that divides bytes."""
    return {"dispatch": "dispatch", "host": "far_links"}.get(kind, "memory")
