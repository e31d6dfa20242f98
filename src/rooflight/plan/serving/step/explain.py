"""The steps of one served layer in the notation, each with its time and what binds it.

In: a layout and the sizes of a step. Out: `ServingLine`s, as a chip takes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.algebra.steps import Step
from rooflight.hardware.mesh import Mesh, place
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Op
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.simulate.load import generate_load, prefill_load
from rooflight.plan.serving.step.layout import Phase, Precision, ServingLayout, mesh_axes, rules
from rooflight.plan.serving.step.model import message_s, term_s
from rooflight.plan.serving.step.terms import CommTerm, StepSpec, derive_steps, layer_terms

PHASES: tuple[Phase, ...] = ("prefill", "generate")


@dataclass(frozen=True, slots=True)
class ServingLine:
    """One step of a layer."""

    op: str
    step: Step
    seconds: float
    binds: str


@dataclass(frozen=True, slots=True)
class ServedLayer:
    """A layer under a layout; `lines` leave out slices, which cost nothing."""

    mesh: Mesh
    lines: tuple[ServingLine, ...]

    @property
    def matmuls_s(self) -> float:
        return sum(x.seconds for x in self.lines if not x.step.is_collective)

    @property
    def collectives_s(self) -> float:
        return sum(x.seconds for x in self.lines if x.step.is_collective)


def served_layer(
    model: ModelSpec,
    on: Slice,
    layout: ServingLayout,
    precision: Precision,
    *,
    phase: Phase,
    ops: Sequence[Op],
    contexts: Sequence[int],
) -> ServedLayer:
    """Derives and times `ops`, of the graph of the phase, for sequences of the given contexts."""
    mesh = place(mesh_axes(layout, model), on)
    graph = model_graph(model, absorbed=phase == "generate")
    setting = StepSpec(graph, rules(layout, model, phase), mesh, precision)
    windows = tuple(dict.fromkeys(b.attention.window for b in model.blocks))
    make = generate_load if phase == "generate" else prefill_load
    load = make(contexts, windows)
    derived = [d for d in derive_steps(setting, ops) if d.step.op != "slice"]
    lines: list[ServingLine] = []
    for line, term in zip(derived, layer_terms(setting, ops), strict=True):
        if isinstance(term, CommTerm):
            seconds = message_s(term, [load])
            binds = "latency" if term.latency_s > seconds / 2 else "bandwidth"
        else:
            flops_s, *moved = term_s(term, [load])
            names = ("weights", "KV cache", "activations")
            seconds = max(flops_s, sum(moved))
            largest = names[max(range(3), key=lambda i: moved[i])]
            binds = "FLOPs" if flops_s >= sum(moved) else f"HBM: {largest}"
        lines.append(ServingLine(term.op, line.step, seconds, binds))
    return ServedLayer(mesh, tuple(lines))
