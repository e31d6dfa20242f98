"""What a served step expects of the compiler: its collectives, and the bytes of what it keeps.

In: a `ServedStep`. Out: `Expected` collectives, constraints of the program, bytes on a device by
path; and `StateTerm`s. The steps are those of `plan.serving`: weights and caches stay in place.
"""

import math

from rooflight.algebra.shapes import device_bytes
from rooflight.compile.aot.state import StateTerm
from rooflight.compile.expected.train import Expected
from rooflight.models.graph.ops import Param
from rooflight.plan.serving.step.constraints import generate_steps
from rooflight.plan.serving.step.terms import StepSpec, sent_dtype
from rooflight.program.from_plan.served_step import WIDE, ServedStep, serving_dims, serving_setting


def expected_serving(step: ServedStep) -> list[Expected]:
    """Every collective of a generate step, layers multiplied out."""
    setting = serving_setting(step)
    dims = serving_dims(step, setting)
    kept = setting.precision.activations
    order = setting.graph.order
    return [
        Expected(
            line.step.op,
            tuple(sorted(line.step.axes)),
            sent_dtype(line.op, kept).nbytes(math.ceil(line.step.elements(dims, setting.axes))),
            1 if block is None else order.count(block),
            line.op.name,
            str(line.step),
        )
        for block, lines in generate_steps(setting).items()
        for line in lines
        if line.step.is_collective
    ]


def expected_stored(step: ServedStep) -> dict[str, int]:
    """Bytes on one device of every weight and of the pages of every layer, by path.

    Of quantized matrices, and of such pages, the values without their scales.
    """
    setting, model = serving_setting(step), step.model
    found = {f"params.frame['{p.name}']": _weight(setting, p) for p in _params(setting, None)}
    for at, run in enumerate(model.layers):
        for place, block in enumerate(run.blocks):
            index, where = model.blocks.index(block), f"[{at}][{place}]"
            for p in _params(setting, index):
                found[f"params.layers{where}['{p.name}']"] = run.times * _weight(setting, p)
            found[f"cache{where}"] = run.times * _pages(step, setting, index)
    return found


def _params(setting: StepSpec, block: int | None) -> list[Param]:
    return [p for p in setting.graph.params if p.block == block]


def _weight(setting: StepSpec, param: Param) -> int:
    """One layer of it. Quantized are matrices, but neither the table of tokens nor a router."""
    kept, few = setting.precision.activations, setting.precision.weights
    matrices = {op.params[0] for op in setting.graph.ops if op.kind == "matmul" and op.params}
    is_matrix = param.name in matrices and param.part not in ("router", "embedding")
    dtype = few if is_matrix or few.name in WIDE else kept
    stored = setting.layout.of_weight(param.tensor)
    return device_bytes(stored, setting.graph.sizes, setting.axes, dtype)


def _pages(step: ServedStep, setting: StepSpec, block: int) -> int:
    """One layer's blocks of the pool; layers with a window have as many."""
    held, axes, layout = setting.graph.sizes, setting.axes, setting.layout
    caches = [layout.of_cache(c.tensor) for c in setting.graph.caches if c.block == block]
    positions = step.num_blocks * step.block_tokens
    # Rows and positions are both in blocks, so a device has its part of all of them.
    sizes = {**held, "B": 1, "S": positions}
    pooled = (
        t.with_axes("B", ()).with_axes("S", (*t.axes_of("B"), *t.axes_of("S"))) for t in caches if t
    )
    return sum(device_bytes(t, sizes, axes, setting.precision.kv) for t in pooled)


def serving_terms(step: ServedStep) -> tuple[StateTerm, ...]:
    """Every component as planned, and as the program is written."""
    stored, planned = expected_stored(step), {p.name: p.nbytes for p in step.memory.parts}
    pages = sum(n for path, n in stored.items() if path.startswith("cache"))
    weights = sum(stored.values()) - pages
    program = {"weights": weights, "kv cache": pages, "activations": planned["activations"]}
    why = {
        "weights": "tables, routers and vectors are not quantized",
        "kv cache": "whole blocks, and every position of layers with a window",
    }
    return tuple(
        StateTerm(name, planned[name], n, why[name] if n != planned[name] else "")
        for name, n in program.items()
    )
