"""This host calibrated: training steps under several layouts, each predicted before it is seen.

In: a measured `Host`, and the seconds of a small model's step under each layout. Out: `HostLayout`s
and the `Calibration` of the host. Constants are fitted as those of published runs are, drawn to
what microbenchmarks and the cores say; a layout is predicted by a fit to all of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflight.hardware.calibration import DENSE, OWN, Calibration, typical_values
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import Slice
from rooflight.measure.microbench.child import measure
from rooflight.measure.microbench.host_chip import Host, chip_file
from rooflight.measure.microbench.small_model import BATCH, DEVICES, DTYPE, LAYOUTS, MODEL, SEQ
from rooflight.measure.reconcile.calibrate import fit_and_hold_out
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.plan.training.forecast.calibrated import part_table
from rooflight.plan.training.time.parts import TrainingRun, training_parts

_ROUNDS = 7
# XLA has one thread for each device that exists, and a collective blocks one: two at once of one
# device take another's, and all wait forever. Devices that exist and do nothing lend theirs.
_THREADS = 4
_TRUST = 2.0  # a program's shapes and copies are far from those of microbenchmarks
_ERRORS = ("rows", "median_error", "mean_error", "spread")
# Devices take turns on the cores, so nothing hides behind anything; matmuls, passes and copies
# between threads reach what the microbenchmarks did.
_OF_A_HOST = {
    **dict.fromkeys(("overlap_weights", "overlap_activations"), 0.0),
    **dict.fromkeys(("near_links", "matmul_bf16", "memory"), 1.0),
}
# Where a fit begins: small matmuls, attention without a kernel of its own, arrays that a
# collective first copies into its order.
_PRIOR = {
    **dict.fromkeys(("overlap_weights", "overlap_activations"), 0.05),
    "near_links": 0.6,
    "matmul_bf16": 0.8,
    "memory": 0.5,
    "attention": 0.15,
}


@dataclass(frozen=True, slots=True)
class HostLayout:
    """A step of the small model under one layout."""

    layout: str
    mesh: str
    measured_s: float
    predicted_s: float  # by constants fitted to the other layouts
    bare_s: float  # by microbenchmarks alone

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class HostCalibration:
    """The layouts, and the constants that all of them give."""

    layouts: tuple[HostLayout, ...]
    calibration: Calibration

    @property
    def rank_correlation(self) -> float:
        """Spearman's: of the ranks of predicted and measured seconds."""
        ranks = [
            np.argsort(np.argsort([getattr(one, name) for one in self.layouts]))
            for name in ("predicted_s", "measured_s")
        ]
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def measure_layouts(host: Host) -> list[float]:
    """Runs every layout on the host's devices, in a process of its own."""
    return measure(
        "run_layouts:steps",
        devices=_THREADS * DEVICES,
        chip=chip_file(host),
        layouts=LAYOUTS,
        rounds=_ROUNDS,
    )


def calibrate_host(host: Host, seconds: Sequence[float], *, made: str) -> HostCalibration:
    """Fits the host to measured layouts; each is predicted by a fit that did not see it."""
    table, measured_s = part_table([training_parts(r) for r in host_runs(host)]), np.array(seconds)
    prior = typical_values() | _PRIOR
    bare_s = table.seconds(typical_values() | _OF_A_HOST).total
    values, said, off = fit_and_hold_out(table, measured_s, prior, _TRUST)
    name, source = host.chip.name, ("this machine",)
    one = Calibration(name, OWN, DENSE, values, len(seconds), source, made, *off)
    layouts = tuple(
        HostLayout(*pair, *map(float, times))
        for pair, *times in zip(LAYOUTS, measured_s, said, bare_s, strict=True)
    )
    return HostCalibration(layouts, one)


def calibrated_chip(host: Host, found: HostCalibration) -> Host:
    """The host with its calibration among its chip's facts; `host_calibration` reads it."""
    one, source = found.calibration, host.chip.sources["hbm_bytes"]
    facts = {**one.values, **{name: float(getattr(one, name)) for name in _ERRORS}}
    sources = {**host.chip.sources, **{f"detail.{name}": source for name in facts}}
    return replace(host, chip=replace(host.chip, detail=facts, sources=sources))


def host_runs(host: Host) -> list[TrainingRun]:
    """The small model under each layout, as the planner prices it."""
    whole, graph = Slice(host.chip, (DEVICES,)), model_graph(MODEL)
    return [
        TrainingRun(
            graph, parse_layout(text), parse_mesh(axes, on=whole), BATCH, SEQ, DTYPE, stored=DTYPE
        )
        for text, axes in LAYOUTS
    ]
