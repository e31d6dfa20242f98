"""What a plan expects of the compiler: every collective with its count, every weight with its size.

In: a `Plan` without pipeline stages. Out: `Expected` collectives and the bytes of each stored
weight on one device. The steps are those that the program's pins are read off; how often each runs
follows from how the program is written:

    forward     each layer, each microbatch
    backward    the same; a weight's sum that may pend is taken once, for all layers of a run
    again       what the remat policy does again; without one around it (`none`, the embedding, the
                head) what was gathered is kept, weights too, instead of gathered a second time
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rooflight.algebra import Axes, Tensor, device_bytes, ways
from rooflight.dtypes import DTYPES, Dtype, parse_dtype
from rooflight.graph import Graph, Op, Param, dim_sizes, model_graph
from rooflight.graph.layout import Layout, parse_layout
from rooflight.graph.pins import Pins
from rooflight.plan.algorithm import pad_routed, token_axes
from rooflight.plan.derivation import Derivation, Derived
from rooflight.plan.pins import derive_ops, pins_of, without_lone_axes
from rooflight.plan.recipe import parse_recipe
from rooflight.plan.remat import keep, parse_remat
from rooflight.records import Plan
from rooflight.specs.mesh import Mesh

_NO_GRADIENT = "donehot"  # a lookup is derived as a product, but tokens have no gradient


@dataclass(frozen=True, slots=True)
class Expected:
    """One collective of the derivation: `nbytes` is the book's V, `count` is a step's."""

    kind: str
    axes: Axes
    nbytes: int
    count: int
    op: str  # of the graph, such as mlp.out
    because: str  # the step in the notation


@dataclass(frozen=True, slots=True)
class Setting:
    """A plan's parts as records, for one microbatch."""

    plan: Plan
    graph: Graph
    layout: Layout
    mesh: Mesh
    dims: Mapping[str, int]
    compute: Dtype
    weights: Dtype

    def pins(self) -> Pins:
        return pins_of(self.graph, self.layout, mesh=self.mesh, dims=self.dims, dtype=self.compute)

    def derive(self, ops: Iterable[Op]) -> Derivation:
        return derive_ops(
            self.graph, ops, self.layout, mesh=self.mesh, dims=self.dims, dtype=self.compute
        )

    def parts(self) -> Iterator[tuple[int | None, int, Derivation]]:
        """Block, layers and steps of all that the program does in one go.

        The products around the layers are on their own: a tied table is moved for each of them.
        """
        for op in self.graph.ops:
            if op.block is None:
                yield None, 1, self.derive([op])
        for run in self.plan.model.layers:
            for block in run.blocks:
                index = self.plan.model.blocks.index(block)
                ops = [op for op in self.graph.ops if op.block == index]
                yield index, run.times, self.derive(ops)

    @property
    def pending(self) -> Dtype:
        """The dtype of gradients whose sum waits for the end of the step."""
        is_wide = self.plan.microbatches > 1
        return DTYPES["f32"] if is_wide else self.weights


def setting_of(plan: Plan) -> Setting:
    """Reads the texts of a plan."""
    graph, mesh = model_graph(plan.model), plan.placed()
    return Setting(
        plan,
        graph,
        without_lone_axes(parse_layout(plan.layout), mesh),
        mesh,
        dim_sizes(graph, batch=plan.batch // plan.microbatches, seq=plan.seq),
        parse_dtype(plan.dtype),
        parse_recipe(plan.recipe).weights,
    )


def expected_collectives(plan: Plan) -> list[Expected]:
    """Every collective of a step, in the order of the derivation; equal ones are not joined."""
    setting = setting_of(plan)
    pins = setting.pins()
    return [
        expected
        for block, layers, derivation in setting.parts()
        for expected in _of_block(setting, pins, derivation, block, layers=layers)
    ]


def _of_block(
    setting: Setting, pins: Pins, derivation: Derivation, block: int | None, *, layers: int
) -> Iterator[Expected]:
    often = layers * setting.plan.microbatches
    for line in _steps(setting, derivation, block):
        step = line.step
        once = _pending_axes(line, pins, block)
        if once and set(step.axes) <= set(once):
            yield _expected(setting, line, setting.pending, 1, layers=layers)
        else:
            yield _expected(setting, line, setting.compute, often)


def _steps(setting: Setting, derivation: Derivation, block: int | None) -> Iterator[Derived]:
    """The collectives of one layer and one microbatch, those that remat does again included."""
    remat = None if block is None else parse_remat(setting.plan.remat, setting.graph)
    if remat is None or remat.name == "none":
        made = {line.step.output for line in derivation.forward}
        again = [d for d in derivation.backward if d.step.output not in made]
    else:
        ops = [op for op in setting.graph.ops if op.block == block]
        names = {op.name for op in keep(ops, remat).ops}
        # Combining experts reads, for the router's gradient, what came back from them.
        names |= {op.name for op in ops if op.kind == "route"}
        remade = [d for d in derivation.forward if d.op.name in names and d.waits == "critical"]
        # A policy names results of ops; what was gathered for a product is never among them.
        done = {d.step for d in remade}
        again = [*remade, *(d for d in derivation.backward if d.step not in done)]
    for line in (*derivation.forward, *again):
        if line.step.is_collective and line.step.output.name != _NO_GRADIENT:
            yield line


def _pending_axes(line: Derived, pins: Pins, block: int | None) -> Axes:
    """The axes over which the gradient of a weight may pend, if this step is of one."""
    output = line.step.output
    if line.slot != "W" or output.name[0] != "d":
        return ()
    return pins.once(Tensor(output.name[1:], output.dims, ((),) * len(output.dims)), block)


def _expected(
    setting: Setting, line: Derived, dtype: Dtype, count: int, *, layers: int = 1
) -> Expected:
    step, axes = line.step, setting.mesh.axes
    sizes = pad_routed(setting.dims, ways(token_axes(setting.layout), axes))
    nbytes = dtype.nbytes(math.ceil(step.elements(sizes, axes))) * layers
    return Expected(step.op, tuple(sorted(step.axes)), nbytes, count, line.op.name, str(step))


def expected_weights(plan: Plan) -> dict[str, int]:
    """Bytes on one device of every stored weight, by its path in the program's state."""
    setting = setting_of(plan)
    frame = {
        f"frame['{p.name}']": _stored(setting, p) for p in setting.graph.params if p.block is None
    }
    return frame | {
        f"layers[{at}][{place}]['{p.name}']": run.times * _stored(setting, p)
        for at, run in enumerate(plan.model.layers)
        for place, block in enumerate(run.blocks)
        for p in setting.graph.params
        if p.block == plan.model.blocks.index(block)
    }


def _stored(setting: Setting, param: Param) -> int:
    placed = setting.layout.of_weight(param.tensor)
    return device_bytes(placed, setting.graph.sizes, setting.mesh.axes, setting.weights)


def kept_gathers(plan: Plan) -> int:
    """Bytes on one device of weights that stay gathered from the forward to the backward pass."""
    setting = setting_of(plan)
    return sum(
        times * device_bytes(tensor, setting.dims, setting.mesh.axes, setting.compute)
        for block, times, derivation in setting.parts()
        if block is None or plan.remat == "none"
        for tensor in _kept_weights(derivation)
    )


def _kept_weights(derivation: Derivation) -> set[Tensor]:
    """Weights as the last of their gathers left them, if the backward pass reads them."""
    gathered = {d.step.output for d in derivation.forward if d.waits == "ahead"}
    products = [d.step for d in derivation.backward if d.step.op == "einsum"]
    read = {t for step in products if step.output.name != _NO_GRADIENT for t in step.inputs}
    return gathered & read
