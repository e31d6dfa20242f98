"""The judge: the program of a plan, compiled for its slice, against what the plan expects.

In: a `Plan`. Out: a `Verdict`. Right after partitioning, with collective matmuls off, collectives
must be those of the derivation; at the schedule of the compiler's own defaults, memory is the
compiler's total.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rooflight.algebra import device_bytes
from rooflight.algebra.notation import Tensor
from rooflight.errors import MissingExtraError, UsageError
from rooflight.records import Plan, plan_hash, to_json
from rooflight.verify.compile import Compilation, Watch, compile_all, read_compilation
from rooflight.verify.expect import (
    Expected,
    Setting,
    expected_collectives,
    expected_weights,
    setting_of,
)
from rooflight.verify.hlo import CompiledStep, Memory
from rooflight.verify.match import Matching, Small, match
from rooflight.verify.request import PLAIN_COLLECTIVES, CompileRequest

Until = Literal["partitioned", "scheduled"]
STAGES: tuple[Until, ...] = ("partitioned", "scheduled")
_WIDE = 4  # bytes of an fp32 number
_DTYPES = ("bf16", "f32", "f16")
BUILD = "rooflight.verify.build_plan:build"
# A weight, its copy in fp32 and both moments, by the path in the program's state.
_WEIGHT = re.compile(r"state\.(params|master|optimizer\[0\]\.[mn]u)\.(.*)")


@dataclass(frozen=True, slots=True)
class Replicated:
    """A weight of which a device stores more than the plan says."""

    name: str
    nbytes: int
    expected_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the compiler made of a plan. `matching` is None if it made nothing."""

    plan: Plan
    done: tuple[Compilation, ...]
    matching: Matching | None
    replicated: tuple[Replicated, ...]
    warnings: tuple[str, ...]
    memory: Memory | None  # None before the schedule

    @property
    def failed(self) -> Compilation | None:
        """The first compile that did not get through."""
        return next((d for d in self.done if not d.is_good), None)

    @property
    def findings(self) -> tuple[str, ...]:
        """What makes the verdict a bad one, a line each; none if the plan stands."""
        found = [f"the compiler: {d.outcome}" for d in self.done if not d.is_good]
        if self.matching:
            found += [f"missing: {m.expected.because}" for m in self.matching.missing]
            found += [f"not expected: {s.collective.name}" for s in self.matching.surprises]
        found += [f"{r.name} is larger than planned" for r in self.replicated]
        return (*found, *self.warnings)

    @property
    def hash(self) -> str:
        """Of what decides the program."""
        return plan_hash(self.plan)


def judge(
    plan: Plan,
    *,
    until: Until = "partitioned",
    build: str = BUILD,
    folder: str = "",
    cache: Path | None = None,
    watch: Watch | None = None,
) -> Verdict:
    """Compiles the program of a plan and holds it against the plan.

    `build` (found in `folder`) is called with the mesh and `plan=` the text of the plan; by
    default it is the program that Rooflight makes.
    """
    _check(plan)
    expected = expected_collectives(plan)  # first: a plan that does not divide is not compiled
    requests = [_request(plan, build, folder, "partitioned")]
    if until == "scheduled":
        requests.append(_request(plan, build, folder, until))
    done = compile_all(requests, cache=cache, watch=watch)
    step = read_compilation(done[0]) if done[0].is_good else None
    return Verdict(
        plan,
        tuple(done),
        _matching(plan, expected, step) if step else None,
        _replicated(plan, step) if step else (),
        step.warnings if step else (),
        _memory(done[-1]) if until == "scheduled" else None,
    )


def _check(plan: Plan) -> None:
    if plan.stages > 1:
        raise UsageError(
            f"the plan has {plan.stages} pipeline stages, whose collectives are not expected yet",
            hint="give a plan without stages, such as one of the alternatives that the file lists",
        )
    if plan.dtype not in _DTYPES:
        raise UsageError(
            f"the program has no products in {plan.dtype}",
            hint=f"plan with --dtype {' or --dtype '.join(_DTYPES)}",
        )
    if find_spec("optax") is None:
        raise MissingExtraError(
            "the program of a plan needs optax, which is not installed",
            hint="pip install 'rooflight[tpu,program]'",
        )


def _request(plan: Plan, build: str, folder: str, until: Until) -> CompileRequest:
    return CompileRequest(
        build,
        plan.placed(),
        {"plan": to_json(plan)},
        until,
        PLAIN_COLLECTIVES if until == "partitioned" else {},
        folder,
    )


def _matching(plan: Plan, expected: Sequence[Expected], step: CompiledStep) -> Matching:
    setting = setting_of(plan)
    ops = [op.name for op in setting.graph.ops]
    return match(expected, step.collectives, ops, _small(setting))


def _small(setting: Setting) -> Small:
    """A vector of the model, or a number of each token of a device, in fp32."""
    stream = setting.layout.of_activation(Tensor("x", ("B", "T"), ((), ())))
    tokens = device_bytes(stream, setting.dims, setting.mesh.axes, setting.pending)
    return Small(vector=4 * max(setting.graph.sizes["D"], tokens))


def _replicated(plan: Plan, step: CompiledStep) -> tuple[Replicated, ...]:
    """Weights, their copies and moments that are larger in the entry than the layout says."""
    expected, each = expected_weights(plan), setting_of(plan).weights.nbytes(1)
    found: list[Replicated] = []
    entry = step.module.computations[step.module.entry]
    for instruction in entry.instructions:
        path = _WEIGHT.fullmatch(instruction.op_name.replace("\\", ""))
        if instruction.opcode != "parameter" or not path or path[2] not in expected:
            continue
        wide = each if path[1] == "params" else _WIDE
        planned = expected[path[2]] * wide // each
        if instruction.nbytes > planned:
            found.append(Replicated(path[0], instruction.nbytes, planned))
    return tuple(found)


def _memory(done: Compilation) -> Memory | None:
    """The compiler's total; it writes one also where it then finds that it does not fit."""
    if done.outcome not in ("compiled", "out of memory"):
        return None
    return read_compilation(done).memory
