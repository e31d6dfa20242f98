"""What a verdict is of: the step of a training plan, or of a served one, by the same questions.

In: a `Plan` or a `ServedStep`. Out: a `Subject`: its program, what the plan expects of it, and the
names and bytes of its state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from rooflight.compile.aot.state import StateTerm, expected_state, terms
from rooflight.compile.expected.serve import expected_serving, expected_stored, serving_terms
from rooflight.compile.expected.train import Expected, expected_collectives
from rooflight.compile.findings.finding import Finding
from rooflight.compile.findings.of_plan import remat_findings
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.plan.file.record import Plan, plan_hash, to_json
from rooflight.plan.serving.step.terms import StepSpec
from rooflight.program.from_plan.served_step import (
    ServedStep,
    hash_step,
    serving_dims,
    serving_setting,
    write_step,
)
from rooflight.program.from_plan.setting import ProgramSetting, setting_of

BUILD = "rooflight.program.from_plan.train:build"
BUILD_SERVE = "rooflight.program.from_plan.serve:build"
_DTYPES = ("bf16", "f32", "f16")
Placed = tuple[ProgramSetting | StepSpec, Mapping[str, int]]  # and the sizes of its dims


@dataclass(frozen=True, slots=True)
class Subject:
    """One kind of step; `check` raises where there is no such program."""

    build: str  # the program that Rooflight makes of it
    hash: Callable[[], str]  # of what decides the program
    text: Callable[[], str]  # the plan, as `build` reads it
    expected: Callable[[], list[Expected]]  # every collective
    terms: Callable[[], tuple[StateTerm, ...]]  # of memory, as planned and as the program has it
    stored: Callable[[], Mapping[str, int]]  # bytes of a device by the name of an argument
    placed: Callable[[], Placed]
    check: Callable[[], None] = lambda: None
    of_policy: Callable[[int | None], tuple[Finding, ...]] = lambda recompute_flops: ()


def subject_of(plan: Plan | ServedStep) -> Subject:
    """The only place that asks which kind a plan is."""
    if isinstance(plan, Plan):
        return Subject(
            BUILD,
            partial(plan_hash, plan),
            partial(to_json, plan),
            partial(expected_collectives, plan),
            partial(terms, plan),
            partial(expected_state, plan),
            partial(_trained, plan),
            partial(_check, plan),
            lambda flops: tuple(remat_findings(plan.remat, flops)),
        )
    return Subject(
        BUILD_SERVE,
        partial(hash_step, plan),
        partial(write_step, plan),
        partial(expected_serving, plan),
        partial(serving_terms, plan),
        partial(expected_stored, plan),
        partial(_served, plan),
    )


def _trained(plan: Plan) -> Placed:
    setting = setting_of(plan)
    return setting, setting.dims


def _served(step: ServedStep) -> Placed:
    setting = serving_setting(step)
    return setting, serving_dims(step, setting)


def _check(plan: Plan) -> None:
    if plan.dtype not in _DTYPES:
        raise UsageError(
            f"the program has no matmuls in {plan.dtype}",
            hint=f"plan with --dtype {' or --dtype '.join(_DTYPES)}",
        )
    if find_spec("optax") is None:
        raise MissingExtraError(
            "the program of a plan needs optax, which is not installed", hint=install("tpu,program")
        )
