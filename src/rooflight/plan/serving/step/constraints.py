"""The constraints of a served model: its generate step in a serving layout, as programs follow it.

In: a model, a serving layout, a mesh, dtypes, and the size of a step. Out: `Constraints`, the steps
that they are read from, and the axes over which the positions of a row are spread.
"""

from dataclasses import replace

from rooflight.algebra.notation import Axes
from rooflight.algebra.shapes import ways
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.constraints import Constraints, Path
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.layout import Precision, ServingLayout, rules
from rooflight.plan.serving.step.terms import StepSpec, derive_steps
from rooflight.plan.training.derive.algorithm import pad_routed
from rooflight.plan.training.derive.constraints import as_matmul, constrain, vectors_of
from rooflight.plan.training.derive.derivation import Derived, token_axes


def generate_setting(
    model: ModelSpec, layout: ServingLayout, mesh: Mesh, precision: Precision
) -> StepSpec:
    """The rules of a generate step, as the program follows them.

    What an expert computed is summed before it is sent back, not after: the program has places of
    experts on the network, the planner prices one vector per token.
    """
    split = replace(rules(layout, model, "generate"), combines=False)
    return StepSpec(model_graph(model), split, mesh, precision)


def generate_dims(setting: StepSpec, *, rows: int, context: int) -> dict[str, int]:
    """Sizes of one token per row; places of experts are padded to whole ones on every device."""
    dims = dim_sizes(setting.graph, batch=rows, seq=context, queries=1)
    return pad_routed(dims, ways(token_axes(setting.layout), setting.axes))


def generate_steps(setting: StepSpec) -> dict[int | None, tuple[Derived, ...]]:
    """The steps of each block, and of the frame around them."""
    blocks = dict.fromkeys(op.block for op in setting.graph.ops)
    found: dict[int | None, tuple[Derived, ...]] = {}
    for block in blocks:
        ops = [as_matmul(op) for op in setting.graph.ops if op.block == block]
        found[block] = derive_steps(setting, ops)
    return found


def generate_constraints(setting: StepSpec, *, rows: int, context: int) -> Constraints:
    """What the program of a generate step follows.

    Where the positions of the cache are split, a new key is on all devices that may have its block.
    """
    dims = generate_dims(setting, rows=rows, context=context)
    constraints = constrain(generate_steps(setting), setting.layout, mesh=setting.mesh, dims=dims)

    def whole(path: Path) -> Path:
        is_new = "S" in path[-1].dims and "T" not in path[-1].dims
        return tuple(t.with_axes("S", ()) for t in path) if is_new else path

    ops = {
        k: replace(p, operands=tuple(map(whole, p.operands))) for k, p in constraints.ops.items()
    }
    return replace(constraints, ops=ops, vectors=dict(vectors_of(setting.graph, constraints)))


def spread_axes(setting: StepSpec) -> Axes:
    """The axes that split the positions of a row."""
    return (setting.layout.cache or {}).get("S", ())
