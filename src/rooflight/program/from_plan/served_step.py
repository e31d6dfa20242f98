"""`ServedStep`: one token for every row of a served model, as a step to compile and to verify.

In: a model, a slice, a serving layout, dtypes, rows and their length. Out: what a verdict shows of
a plan: its mesh, and the memory and time that the serving planner has for it.
"""

import hashlib
import json
from dataclasses import dataclass

from rooflight.algebra.notation import Axes
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, place
from rooflight.hardware.slice import parse_slice
from rooflight.models.layout.constraints import Constraints
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.codec import dump, load
from rooflight.plan.file.record import MemoryUse, Part, Time
from rooflight.plan.serving.step.constraints import (
    generate_constraints,
    generate_dims,
    generate_setting,
    spread_axes,
)
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import (
    Precision,
    mesh_axes,
    parse_precision,
    parse_serving_layout,
)
from rooflight.plan.serving.step.memory import ServingMemory
from rooflight.plan.serving.step.terms import StepSpec

WIDE = ("bf16", "f32", "f16")  # dtypes of arrays as they are
FEW = ("int8", "int4", "fp8")  # of matrices, values beside scales
FEW_KV = ("int8", "fp8")


def check_dtypes(dtypes: Precision) -> None:
    """Raises where the program has no weights or no cache of such a form."""
    for what, name, known in (
        ("weights", str(dtypes).partition("/")[0], (*WIDE, *FEW)),
        ("a cache", dtypes.kv.name, (*WIDE, *FEW_KV)),
    ):
        if name not in known:
            raise UsageError(
                f"the program has no {what} in {name}", hint=f"take one of {', '.join(known)}"
            )


@dataclass(frozen=True, slots=True)
class ServedStep:
    """A generate step, decided.

    Every row has up to `context` positions, its new token among them; the pool has `pool_tokens`
    for all rows together, as many as they may need if it is 0.
    """

    model: ModelSpec
    slice: str
    layout: str  # of serving: tp=16,kv=batch
    dtypes: str  # weights/kv/compute
    rows: int
    context: int
    block_tokens: int = 128
    pool_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.rows, self.context, self.block_tokens) < 1:
            raise UsageError("a step without rows, positions or blocks", hint="make each 1 or more")
        check_dtypes(parse_precision(self.dtypes))

    @property
    def table(self) -> int:
        """Blocks that a row may have."""
        return -(-self.context // self.block_tokens)

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, split evenly over all chips."""
        chips = parse_slice(self.slice).num_chips
        if not self.pool_tokens:
            return -(-self.rows * self.table // chips) * chips
        return self.pool_tokens // self.block_tokens // chips * chips

    def placed(self) -> Mesh:
        """The mesh on its slice."""
        axes = mesh_axes(parse_serving_layout(self.layout), self.model)
        return place(axes, parse_slice(self.slice))

    @property
    def time(self) -> Time:
        """As the serving planner has it."""
        layout, dtypes = parse_serving_layout(self.layout), parse_precision(self.dtypes)
        served = serving_model(self.model, parse_slice(self.slice), layout, dtypes)
        step = served.generate([self.context] * self.rows)
        waits = {"critical": step.network_s}
        busy = step.matmuls_s + step.overhead_s
        return Time(step.expected_s, step.lower_s, step.upper_s, busy, 0.0, 0.0, step.axes_s, waits)

    @property
    def memory(self) -> MemoryUse:
        """As the serving planner has it, a step of `rows` tokens."""
        layout, dtypes = parse_serving_layout(self.layout), parse_precision(self.dtypes)
        on = parse_slice(self.slice)
        asked = ServingMemory(self.model, on, layout, dtypes, step_tokens=self.rows)
        held = asked.held(self.rows, self.context)
        pool = self.num_blocks * self.block_tokens / (self.rows * self.context)
        parts = (
            Part("weights", held.weights_bytes, ""),
            Part("kv cache", round(held.kv_bytes * pool), ""),
            Part("activations", held.activations_bytes, ""),
        )
        return MemoryUse(0, parts, held.usable_bytes)


def is_fleet(text: str) -> bool:
    """Whether a file of the verb plan is one of `plan serve`."""
    return '"question": "serve"' in text


def step_of_fleet(text: str) -> ServedStep:
    """The generate step of a fleet's replicas, from the document of `plan serve --json`."""
    try:
        document = json.loads(text)
        fleet = document["fleet"]
        sizes = ("max_rows", "longest_request", "block_tokens", "pool_tokens")
        rows, longest, block, pool = (int(fleet[key]) for key in sizes)
        on, layout, dtypes = (str(fleet[key]) for key in ("on", "layout", "dtypes"))
        name = str(document["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"no fleet to compile: {error}", hint="write one with `rooflight plan serve ... --json`"
        ) from None
    return ServedStep(load_model(name), on, layout, dtypes, rows, longest, block, pool)


def write_step(step: ServedStep) -> str:
    """The step as text."""
    return dump(step, verb="verify", schema=1)


def hash_step(step: ServedStep) -> str:
    """16 hex digits of all that decides its program."""
    return hashlib.sha256(write_step(step).encode()).hexdigest()[:16]


def read_step(text: str) -> ServedStep:
    """What `write_step` wrote."""
    return load(ServedStep, text, verb="verify", schema=1)


def serving_setting(step: ServedStep) -> StepSpec:
    """The rules of a served step, as the program follows them."""
    layout, dtypes = parse_serving_layout(step.layout), parse_precision(step.dtypes)
    return generate_setting(step.model, layout, step.placed(), dtypes)


def serving_dims(step: ServedStep, setting: StepSpec) -> dict[str, int]:
    """Sizes of one token per row."""
    return generate_dims(setting, rows=step.rows, context=step.context)


def serving_constraints(step: ServedStep) -> Constraints:
    """What the program of a served step follows."""
    return generate_constraints(serving_setting(step), rows=step.rows, context=step.context)


def spread_of(step: ServedStep) -> Axes:
    """The axes that split the positions of a row."""
    return spread_axes(serving_setting(step))
