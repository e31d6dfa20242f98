"""What a verdict is of: the step of a training plan, or of a served one, by the same questions.

In: a `Plan` or a `ServedStep`. Out: a `Subject`: its program, what the plan expects of it, and the
names and bytes of its state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

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


class Subject(Protocol):
    """One kind of step."""

    @property
    def build(self) -> str:
        """The program that Rooflight makes of it."""
        ...

    @property
    def hash(self) -> str:
        """Of what decides the program."""
        ...

    @property
    def text(self) -> str:
        """The plan, as `build` reads it."""
        ...

    @property
    def expected(self) -> list[Expected]:
        """Every collective."""
        ...

    @property
    def terms(self) -> tuple[StateTerm, ...]:
        """Every component of memory, as planned and as the program is written."""
        ...

    @property
    def stored(self) -> Mapping[str, int]:
        """Bytes of a device by the name of an argument."""
        ...

    @property
    def setting(self) -> tuple[ProgramSetting | StepSpec, Mapping[str, int]]:
        """How it is laid out, and the sizes of its dims."""
        ...

    def check(self) -> None:
        """Raises `UsageError` where there is no such program."""
        ...

    def of_policy(self, recompute_flops: int | None) -> tuple[Finding, ...]:
        """What the remat policy is found to be."""
        ...


@dataclass(frozen=True, slots=True)
class _Training:
    plan: Plan
    build: str = BUILD

    @property
    def hash(self) -> str:
        return plan_hash(self.plan)

    @property
    def text(self) -> str:
        return to_json(self.plan)

    @property
    def expected(self) -> list[Expected]:
        return expected_collectives(self.plan)

    @property
    def terms(self) -> tuple[StateTerm, ...]:
        return terms(self.plan)

    @property
    def stored(self) -> Mapping[str, int]:
        return expected_state(self.plan)

    @property
    def setting(self) -> tuple[ProgramSetting, Mapping[str, int]]:
        setting = setting_of(self.plan)
        return setting, setting.dims

    def check(self) -> None:
        if self.plan.dtype not in _DTYPES:
            raise UsageError(
                f"the program has no matmuls in {self.plan.dtype}",
                hint=f"plan with --dtype {' or --dtype '.join(_DTYPES)}",
            )
        if find_spec("optax") is None:
            raise MissingExtraError(
                "the program of a plan needs optax, which is not installed",
                hint=install("tpu,program"),
            )

    def of_policy(self, recompute_flops: int | None) -> tuple[Finding, ...]:
        return tuple(remat_findings(self.plan.remat, recompute_flops))


@dataclass(frozen=True, slots=True)
class _Serving:
    plan: ServedStep
    build: str = BUILD_SERVE

    @property
    def hash(self) -> str:
        return hash_step(self.plan)

    @property
    def text(self) -> str:
        return write_step(self.plan)

    @property
    def expected(self) -> list[Expected]:
        return expected_serving(self.plan)

    @property
    def terms(self) -> tuple[StateTerm, ...]:
        return serving_terms(self.plan)

    @property
    def stored(self) -> Mapping[str, int]:
        return expected_stored(self.plan)

    @property
    def setting(self) -> tuple[StepSpec, Mapping[str, int]]:
        setting = serving_setting(self.plan)
        return setting, serving_dims(self.plan, setting)

    def check(self) -> None:
        """Every served step has a program."""

    def of_policy(self, recompute_flops: int | None) -> tuple[Finding, ...]:
        return ()


def subject_of(plan: Plan | ServedStep) -> Subject:
    """The only place that asks which kind a plan is."""
    return _Training(plan) if isinstance(plan, Plan) else _Serving(plan)
