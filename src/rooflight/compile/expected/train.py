"""What a plan expects of the compiler: every collective with its count, every weight with its size.

In: a `Plan`. Out: `Expected` collectives and the bytes of each stored weight on one device. The
steps are those that the program's constraints are read off; how often each runs follows from how
the program is written:

    forward     each layer, each microbatch; or each tick of a pipeline (`from_plan.schedule`)
    backward    the same, but for sums of weights' gradients that may pend to the end
    recomputed  what the remat policy recomputes; around the layers there is none (the embedding,
                the head): what was gathered is kept, weights too, instead of gathered twice
    update      once a step, for all layers of a run: gradients go to where the optimizer has its
                part of a weight, and the new weights come back (zero 1)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooflight.algebra.autodiff import gradient_of
from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.reshard import reshard
from rooflight.algebra.shapes import device_bytes, local_shape, ways
from rooflight.algebra.steps import Step
from rooflight.dtypes import DTYPES, Dtype
from rooflight.models.layout.constraints import Constraints
from rooflight.plan.file.record import Plan
from rooflight.plan.training.derive.algorithm import pad_routed
from rooflight.plan.training.derive.derivation import Derived, DerivedLayer, token_axes
from rooflight.plan.training.memory.remat import keep, parse_remat
from rooflight.program.from_plan.setting import ProgramSetting, rounds_of, setting_of

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


def expected_collectives(plan: Plan) -> list[Expected]:
    """Every collective of a step, in the order of the derivation; equal ones are not joined."""
    setting = setting_of(plan)
    constraints = setting.constraints()
    layers = [
        expected
        for block, layers, derivation in setting.parts()
        for expected in _of_block(setting, constraints, derivation, block, layers=layers)
    ]
    return [*layers, *_of_stages(setting), *_of_update(setting, constraints)]


def _of_block(
    setting: ProgramSetting,
    constraints: Constraints,
    derivation: DerivedLayer,
    block: int | None,
    *,
    layers: int,
) -> Iterator[Expected]:
    rounds = rounds_of(setting.plan)
    for line, is_forward in _steps(setting, derivation, block):
        often = rounds.backward
        if is_forward and line.op.part != "head":  # the loss is with the gradients
            # Both rounds of a tick read the same table of the embedding: it is gathered once.
            is_table = block is None and line.waits == "ahead"
            often = rounds.ticks if is_table else rounds.forward + rounds.backward
        if line.hops:
            yield _hops(setting, line, layers * often)
        elif not set(line.step.axes) <= set(_pending_axes(line, constraints, block)):
            yield _expected(setting, line.step, line.op.name, setting.compute, layers * often)


def _hops(setting: ProgramSetting, line: Derived, often: int) -> Expected:
    """A block of n to the next device: n - 1 times gathered, n times as part of an fp32 sum."""
    step, devices = line.step, ways(line.step.axes, setting.mesh.axes)
    is_sum = step.op == "reduce_scatter"
    block = math.ceil(step.elements(setting.dims, setting.mesh.axes)) // devices
    nbytes = DTYPES["f32"].nbytes(block) if is_sum else setting.compute.nbytes(block)
    often *= devices - (not is_sum)
    return Expected(
        "permute", tuple(sorted(step.axes)), nbytes, often, line.op.name, f"{step}, in hops"
    )


def _of_stages(setting: ProgramSetting) -> Iterator[Expected]:
    """What stages hand to each other, and the sums of weights that all have."""
    rounds, stages = rounds_of(setting.plan), tuple(sorted(setting.layout.stages))
    stream = setting.layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
    if rounds.permutes:
        nbytes = device_bytes(stream, setting.dims, setting.mesh.axes, setting.compute)
        because = f"Permute_{''.join(stages)} {stream}"
        yield Expected("permute", stages, nbytes, rounds.permutes, "", because)
    for param in setting.graph.params:
        if param.block is None and stages:
            placed = gradient_of(setting.layout.of_weight(param.tensor))
            nbytes = device_bytes(placed, setting.graph.sizes, setting.mesh.axes, setting.pending)
            because = f"AllReduce_{''.join(stages)} {placed}"
            yield Expected("all_reduce", stages, nbytes, 1, param.name, because)


def _of_update(setting: ProgramSetting, constraints: Constraints) -> Iterator[Expected]:
    """Gradients to the parts of the optimizer, and weights back from them."""
    axes = setting.mesh.axes
    for _, param, layers in setting.stacks():
        stored, state = setting.layout.of_weight(param.tensor), setting.state_of(param)
        once = constraints.once(param.tensor, param.block)
        gradient = gradient_of(stored).with_unreduced(once)
        there = reshard(gradient, replace(gradient, axes=state.axes, unreduced=()), axes)
        for steps, dtype in (
            (there, setting.pending),
            (reshard(state, stored, axes), setting.weights),
        ):
            for step in steps:
                if step.is_collective:
                    yield _expected(setting, step, param.name, dtype, 1, layers=layers)


def _steps(
    setting: ProgramSetting, derivation: DerivedLayer, block: int | None
) -> Iterator[tuple[Derived, bool]]:
    """The collectives of one layer and one microbatch, and which of them a forward alone has.

    Those that remat recomputes are included."""
    if block is None:
        made = {line.step.output for line in derivation.forward}
        recomputed = [d for d in derivation.backward if d.step.output not in made]
    else:
        remat = parse_remat(setting.plan.remat, setting.graph)
        ops = [op for op in setting.graph.ops if op.block == block]
        names = {op.name for op in keep(ops, remat).ops}
        # Combining experts reads, for the router's gradient, what came back from them.
        names |= {op.name for op in ops if op.kind == "route"}
        recomputed = [d for d in derivation.forward if d.op.name in names and d.waits == "critical"]
        # A policy names results of ops; what was gathered for a matmul is never among them.
        done = {d.step for d in recomputed}
        later = (d for d in derivation.backward if d.hops or d.step not in done)
        recomputed = [*recomputed, *later]
    for lines, is_forward in ((derivation.forward, True), (recomputed, False)):
        for line in lines:
            if line.step.is_collective and line.step.output.name != _NO_GRADIENT:
                yield line, is_forward


def _pending_axes(line: Derived, constraints: Constraints, block: int | None) -> Axes:
    """The axes over which the gradient of a weight may pend, if this step is of one."""
    output = line.step.output
    if line.slot != "W" or output.name[0] != "d":
        return ()
    return constraints.once(Tensor(output.name[1:], output.dims, ((),) * len(output.dims)), block)


def _expected(
    setting: ProgramSetting, step: Step, op: str, dtype: Dtype, count: int, *, layers: int = 1
) -> Expected:
    axes = setting.mesh.axes
    sizes = pad_routed(setting.dims, ways(token_axes(setting.layout), axes))
    nbytes = dtype.nbytes(math.ceil(step.elements(sizes, axes))) * layers
    return Expected(step.op, tuple(sorted(step.axes)), nbytes, count, op, str(step))


def expected_weights(plan: Plan) -> dict[str, int]:
    """Bytes on one device of every stored weight, by its path in the program's state."""
    setting = setting_of(plan)
    sizes, axes, dtype = setting.graph.sizes, setting.mesh.axes, setting.weights
    return {
        path: layers * device_bytes(setting.layout.of_weight(p.tensor), sizes, axes, dtype)
        for path, p, layers in setting.stacks()
    }


def expected_optimizer(plan: Plan) -> dict[str, int]:
    """Numbers on one device that the optimizer keeps of each, once: its part of every weight."""
    setting = setting_of(plan)
    sizes, axes = setting.graph.sizes, setting.mesh.axes
    return {
        path: layers * math.prod(local_shape(setting.state_of(p), sizes, axes))
        for path, p, layers in setting.stacks()
    }
