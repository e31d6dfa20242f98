"""The expected time of a planned training step, from a calibration of its chip: one's own first.

In: a run. Out: an `Expected` with its 80 % interval, or None where no calibration fits its chip.
"""

from dataclasses import dataclass

from rooflight.graph import Graph
from rooflight.plan.calibrated import part_table
from rooflight.plan.parts import TrainingRun, training_parts
from rooflight.reconcile.host import own_calibration
from rooflight.reconcile.rows import read_facts
from rooflight.specs.calibration import (
    DENSE,
    EXPERTS,
    Calibration,
    own_calibrations,
    shipped_calibrations,
)
from rooflight.specs.chip import Chip

_ENGINES = {"tpu": "maxtext", "gpu": "megatron"}  # whose runs most rows of a kind of chip are


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds that a step will take: the middle and the ends of an 80 % interval."""

    seconds: float
    low_s: float
    high_s: float
    calibration: Calibration


def expected_step(run: TrainingRun) -> Expected | None:
    """Prices a run with the constants of its own chip; another chip's are no estimate.

    >>> from rooflight.graph import model_graph
    >>> from rooflight.graph.layout import parse_layout
    >>> from rooflight.specs import load_model, parse_mesh
    >>> graph, layout = model_graph(load_model("llama3-8b")), parse_layout("fsdp=X")
    >>> run = TrainingRun(graph, layout, parse_mesh("X=256", on="v5e:16x16"), 512, 4096)
    >>> found = expected_step(run)
    >>> found and found.low_s < found.seconds < found.high_s
    True
    """
    chip, blocks = run.mesh.slice.chip, blocks_of(run.graph)
    one = own_calibrations().get((chip.name, blocks))
    one = one or (own_calibration(chip) if blocks == DENSE else None)
    one = one or _calibration(chip, blocks)
    if one is None:
        return None
    seconds = float(part_table([training_parts(run)]).seconds(one.values).total[0])
    low_s, high_s = one.interval(seconds)
    return Expected(seconds, low_s, high_s, one)


def _calibration(chip: Chip, blocks: str) -> Calibration | None:
    """Of the versions of the usual engine, the one with most rows of the chip."""
    name, engine = _measured_name(chip), _ENGINES.get(chip.kind)
    found = [
        c
        for c in shipped_calibrations().values()
        if (c.chip, c.engine.partition("@")[0], c.blocks) == (name, engine, blocks)
    ]
    return max(found, key=lambda c: c.rows, default=None)


def _measured_name(chip: Chip) -> str | None:
    """The name by which rows know a chip of the catalog, not one of its variants."""
    known = read_facts("chips")
    plain = [
        n for n, facts in known.items() if facts["chip"] == chip.name and "source" not in facts
    ]
    return plain[0] if plain else None


def blocks_of(graph: Graph) -> str:
    """Of models with experts, or of dense ones."""
    return EXPERTS if graph.per_token else DENSE
