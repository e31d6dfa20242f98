"""The judge: the program of a plan, compiled for its slice, against what the plan expects.

In: a `Plan`. Out: a `Verdict`. Right after partitioning, with collective matmuls off, collectives
must be those of the derivation; at the schedule of the compiler's own defaults, memory is the
compiler's total; of the finished executable, the time of its schedule is composed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rooflight.algebra import device_bytes
from rooflight.algebra.notation import Tensor
from rooflight.dtypes import DTYPES
from rooflight.errors import MissingExtraError, UsageError
from rooflight.records import Plan, plan_hash, to_json
from rooflight.verify.compile import Compilation, Watch, compile_all, read_compilation
from rooflight.verify.compiled_time import CompiledTime, compiled_time
from rooflight.verify.expect import Expected, Setting, expected_collectives, setting_of
from rooflight.verify.finding import Finding, located, warning_finding
from rooflight.verify.hlo import Collective, CompiledStep, Memory
from rooflight.verify.match import Matching, Small, match
from rooflight.verify.plan_findings import (
    absent_finding,
    compile_findings,
    exposed_findings,
    matching_findings,
    remat_findings,
    stored_finding,
)
from rooflight.verify.request import PLAIN_COLLECTIVES, CompileRequest
from rooflight.verify.state import expected_state

Until = Literal["partitioned", "scheduled", "executable"]
STAGES: tuple[Until, ...] = ("partitioned", "scheduled", "executable")
_DTYPES = ("bf16", "f32", "f16")
BUILD = "rooflight.verify.build_plan:build"


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
    unseen: tuple[str, ...]  # weights and moments of the plan that the program has not
    warnings: tuple[str, ...]
    memory: Memory | None  # None before the schedule
    time: CompiledTime | None = None  # None before the executable: unknown
    collectives: tuple[Collective, ...] = ()  # right after partitioning
    again_flops: int | None = None  # of products done a second time; None if nothing was compiled
    scheduled: tuple[Collective, ...] = ()  # as the executable has them

    @property
    def failed(self) -> Compilation | None:
        """The first compile that did not get through."""
        return next((d for d in self.done if not d.is_good), None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What makes the verdict a bad one; none if all is as planned."""
        mesh = self.plan.placed()
        return (
            *compile_findings(self.done),
            *(matching_findings(self.matching, mesh) if self.matching else ()),
            *(stored_finding(r.name, r.nbytes, r.expected_bytes) for r in self.replicated),
            *map(absent_finding, self.unseen),
            *remat_findings(self.plan.remat, self.again_flops),
            *(exposed_findings(self.plan.time, self.time, self.scheduled) if self.time else ()),
            *map(warning_finding, self.warnings),
        )

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
    default it is the program that Rooflight makes. One of your own names its state as that does
    (`expected_state`): a weight that is not found cannot be judged, which is a finding.
    """
    _check(plan)
    expected = expected_collectives(plan)  # first: a plan that does not divide is not compiled
    requests = [_request(plan, build, folder, "partitioned")]
    if until != "partitioned":
        requests.append(_request(plan, build, folder, until))
    done = compile_all(requests, cache=cache, watch=watch)
    step = read_compilation(done[0]) if done[0].is_good else None
    replicated, unseen = _stored(plan, step) if step else ((), ())
    last = read_compilation(done[-1]) if until == "executable" and done[-1].is_good else None
    return Verdict(
        plan,
        tuple(done),
        _matching(plan, expected, step) if step else None,
        replicated,
        unseen,
        tuple(located(text, step.module) for text in step.warnings) if step else (),
        _memory(done[-1]) if until != "partitioned" else None,
        compiled_time(last, plan.placed()) if last else None,
        step.collectives if step else (),
        step.recomputed_flops if step else None,
        last.collectives if last else (),
    )


def _check(plan: Plan) -> None:
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
    stream, wide = Tensor("x", ("B", "T"), ((), ())), DTYPES["f32"]
    placed = setting.layout.of_activation(stream)
    tokens = device_bytes(placed, setting.dims, setting.mesh.axes, wide)
    return Small(vector=max(wide.nbytes(setting.graph.sizes["D"]), tokens))


def _stored(plan: Plan, step: CompiledStep) -> tuple[tuple[Replicated, ...], tuple[str, ...]]:
    """What is larger in the entry than the layout says, and what is not there to be held to it."""
    expected = expected_state(plan)
    entry = step.module.computations[step.module.entry]
    there = {
        instruction.op_name.replace("\\", ""): instruction.nbytes
        for instruction in entry.instructions
        if instruction.opcode == "parameter"
    }
    replicated = (
        Replicated(name, there[name], nbytes)
        for name, nbytes in expected.items()
        if there.get(name, 0) > nbytes
    )
    return tuple(replicated), tuple(name for name in expected if name not in there)


def _memory(done: Compilation) -> Memory | None:
    """The compiler's total; it writes one also where it then finds that it does not fit."""
    if done.outcome not in ("compiled", "out of memory"):
        return None
    return read_compilation(done).memory
