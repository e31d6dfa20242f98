"""A plan as records: what its program is built from, and what is expected of the compiler.

In: a `Plan`. Out: a `ProgramSetting`: graph, layout, mesh and dtypes, for one microbatch.

How the program of a plan goes through its layers: at once, or as the stages of a pipeline. Without
a pipeline a round is a microbatch and has all layers. With one it is a lane of a tick, in which
every device runs one of its stages (`program.pipeline.in_step`): a forward, or the stage again with
the loss and both gradients, whatever its slot.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from rooflight.algebra.notation import Tensor
from rooflight.dtypes import Dtype, parse_dtype
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import Graph, Op, Param
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.in_step import in_step
from rooflight.models.layout.rules import Layout, parse_layout
from rooflight.models.layout.slots import Schedule
from rooflight.models.layout.zero import data_axes, split_state
from rooflight.models.spec import ModelSpec, Repeat
from rooflight.plan.file.record import Plan
from rooflight.plan.training.derive.constraints import constraints_of, derive_ops, without_lone_axes
from rooflight.plan.training.derive.derivation import DerivedLayer
from rooflight.plan.training.memory.job import parse_recipe
from rooflight.plan.training.time.stages import schedule_table
from rooflight.program.pipeline.layers import staging_of
from rooflight.program.pipeline.table import PLACES, encode


@dataclass(frozen=True, slots=True)
class ProgramSetting:
    """A plan's parts as records, for one microbatch."""

    plan: Plan
    graph: Graph
    layout: Layout
    mesh: Mesh
    dims: Mapping[str, int]
    compute: Dtype
    weights: Dtype

    def constraints(self) -> Constraints:
        return constraints_of(
            self.graph, self.layout, mesh=self.mesh, dims=self.dims, dtype=self.compute
        )

    def derive(self, ops: Iterable[Op]) -> DerivedLayer:
        return derive_ops(
            self.graph, ops, self.layout, mesh=self.mesh, dims=self.dims, dtype=self.compute
        )

    def parts(self) -> Iterator[tuple[int | None, int, DerivedLayer]]:
        """Block, layers and steps of all that the program does in one go.

        The matmuls around the layers are on their own: a tied table is moved for each of them.
        """
        for op in self.graph.ops:
            if op.block is None:
                yield None, 1, self.derive([op])
        for run in rounds_of(self.plan).runs:
            for block in run.blocks:
                index = self.plan.model.blocks.index(block)
                ops = [op for op in self.graph.ops if op.block == index]
                yield index, run.times, self.derive(ops)

    def stacks(self) -> Iterator[tuple[str, Param, int]]:
        """Every weight with its path in the program's state and the layers it is stacked of."""
        for param in self.graph.params:
            if param.block is None:
                yield f"frame['{param.name}']", param, 1
        rounds = rounds_of(self.plan)
        for at, run in enumerate(rounds.runs):
            for place, block in enumerate(run.blocks):
                index = self.plan.model.blocks.index(block)
                for param in self.graph.params:
                    if param.block == index:
                        yield (
                            f"layers[{at}][{place}]['{param.name}']",
                            param,
                            run.times * rounds.chunks,
                        )

    def state_of(self, param: Param) -> Tensor:
        """A weight where the optimizer keeps its part."""
        stored = self.layout.of_weight(param.tensor)
        extra = data_axes(self.layout) if self.plan.zero else ()
        return split_state(stored, extra, sizes=self.graph.sizes, axes=self.mesh.axes)

    @property
    def pending(self) -> Dtype:
        """The dtype of gradients whose sum waits for the end of the step."""
        recipe = parse_recipe(self.plan.recipe)
        is_added = self.plan.microbatches > 1 or self.plan.stages > 1
        return (recipe.gradients or recipe.compute) if is_added else self.weights


def setting_of(plan: Plan) -> ProgramSetting:
    """Reads the texts of a plan."""
    graph, mesh = model_graph(plan.model), plan.placed()
    return ProgramSetting(
        plan,
        graph,
        without_lone_axes(parse_layout(plan.layout), mesh),
        mesh,
        dim_sizes(graph, batch=plan.batch // plan.microbatches, seq=plan.seq),
        parse_dtype(plan.dtype),
        parse_recipe(plan.recipe).weights,
    )


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a device does in a step."""

    runs: tuple[Repeat, ...]  # of one round, padding of uneven stages included
    forward: int  # rounds of a forward alone
    backward: int  # rounds of a forward, the loss and both gradients
    ticks: int  # each of one round, or of one of each kind
    chunks: int = 1  # stages of a device
    permutes: int = 0  # of all rounds: to the next stage, to the one before


def schedule_of(plan: Plan) -> Schedule | None:
    """The table that the program runs; None without a pipeline."""
    if plan.schedule is None:
        return None
    return schedule_table(
        plan.schedule, stages=plan.stages, microbatches=plan.microbatches, virtual=plan.virtual
    )


def rounds_of(plan: Plan) -> Rounds:
    """Reads the rounds off the table that the program runs."""
    schedule = schedule_of(plan)
    if schedule is None:
        return Rounds(plan.model.layers, 0, plan.microbatches, plan.microbatches)
    return _of_schedule(plan.model, schedule)


@lru_cache(maxsize=64)
def _of_schedule(model: ModelSpec, schedule: Schedule) -> Rounds:
    ticks, staging = encode(schedule), staging_of(model, schedule)
    rounds = in_step(schedule).rounds
    sent = [sum(place in lane for place in PLACES[:2]) for lane in ticks.lanes.values()]
    return Rounds(
        staging.runs,
        *rounds,
        sum(phase.stop - phase.start for phase in ticks.phases),
        ticks.chunks,
        sum(n * ways for n, ways in zip(rounds, sent, strict=True)),
    )
