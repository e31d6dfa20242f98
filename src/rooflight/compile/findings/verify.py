"""Verifies a plan: the program of a plan, compiled for its slice, against what the plan expects.

In: a `Plan`, or a `ServedStep` of a fleet. Out: a `Verdict`. Right after partitioning, with
collective matmuls off, collectives must be those of the derivation; at the schedule of the
compiler's own defaults, memory is the compiler's total; of the finished executable, the time of its
schedule is composed.

Several plans of one question, verified in fast mode: which pass. A plan passes if its program is
compiled to a schedule, fits, and has no finding; how long its step takes is not asked.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.compile.aot.flags import chosen_options
from rooflight.compile.aot.request import CompileRequest, CompilerOption, plain_collectives
from rooflight.compile.aot.run import (
    Compilation,
    Watch,
    compile_all,
    is_timed,
    laid_out,
    read_compilation,
)
from rooflight.compile.aot.target import CORE_AXIS
from rooflight.compile.expected.match import Matching, Small, match
from rooflight.compile.findings.finding import Finding, located, warning_finding
from rooflight.compile.findings.of_plan import (
    absent_finding,
    compile_findings,
    exposed_findings,
    matching_findings,
    stored_finding,
)
from rooflight.compile.findings.subject import subject_of
from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.memory import HloMemory
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.dtypes import DTYPES
from rooflight.errors import MissingExtraError, UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.build import model_graph
from rooflight.plan.file.record import Plan
from rooflight.plan.serving.step.terms import StepSpec
from rooflight.program.from_plan.served_step import (
    ServedStep,
)
from rooflight.program.from_plan.setting import ProgramSetting
from rooflight.units import format_si

Word = Literal["passes", "findings", "not asked", "does not fit", "not compiled"]
# The order of layouts after the compiler was asked; as priced within each.
WORDS: tuple[Word, ...] = ("passes", "findings", "not asked", "does not fit", "not compiled")

Until = Literal["partitioned", "scheduled", "executable"]
STAGES: tuple[Until, ...] = ("partitioned", "scheduled", "executable")
_SCALE = ".scale']"  # of quantized pages


@dataclass(frozen=True, slots=True)
class Replicated:
    """A weight of which a device stores more than the plan says."""

    name: str
    nbytes: int
    expected_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the compiler made of a plan. `matching` is None if it made nothing."""

    plan: Plan | ServedStep
    done: tuple[Compilation, ...]
    matching: Matching | None
    replicated: tuple[Replicated, ...]
    unseen: tuple[str, ...]  # weights and moments of the plan that the program lacks
    warnings: tuple[str, ...]
    memory: HloMemory | None  # None before the schedule
    time: CompiledTime | None = None  # None before the executable: unknown
    collectives: tuple[Collective, ...] = ()  # right after partitioning
    recompute_flops: int | None = None  # of recomputed matmuls; None if nothing was compiled
    scheduled: CompiledStep | None = None

    @property
    def mesh(self) -> Mesh:
        """Of the plan, on its slice."""
        return self.plan.placed()

    @property
    def failed(self) -> Compilation | None:
        """The first compile that did not get through."""
        return next((d for d in self.done if not d.is_good), None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What makes the verdict a bad one; none if all is as planned."""
        return (
            *compile_findings(self.done),
            *(matching_findings(self.matching, self.mesh) if self.matching else ()),
            *(stored_finding(r.name, r.nbytes, r.expected_bytes) for r in self.replicated),
            *map(absent_finding, self.unseen),
            *subject_of(self.plan).of_policy(self.recompute_flops),
            *self._exposed,
            *map(warning_finding, self.warnings),
        )

    @property
    def _exposed(self) -> Iterable[Finding]:
        is_asked = self.done[-1].request.until == "executable"
        if self.time is None or self.scheduled is None or not is_asked:
            return ()
        return exposed_findings(self.plan.time, self.time, self.scheduled.collectives)

    @property
    def hash(self) -> str:
        """Of what decides the program."""
        return subject_of(self.plan).hash()


def verify(
    plan: Plan | ServedStep,
    *,
    until: Until = "partitioned",
    build: str = "",
    folder: str = "",
    python: str = "",
    cache: Path | None = None,
    watch: Watch | None = None,
) -> Verdict:
    """Compiles the program of a plan and holds it against the plan.

    `build` (found in `folder`) is called with the mesh and `plan=` the text of the plan; by
    default it is the program that Rooflight makes. One of your own names its state as that does
    (`expected_state`): a weight that is not found cannot be verified, which is a finding.
    """
    subject = subject_of(plan)
    subject.check()
    expected = subject.expected()  # first: a plan that does not divide is not compiled
    stages = dict.fromkeys(("partitioned", until))
    requests = [_request(plan, build or subject.build, folder, stage, python) for stage in stages]
    done = compile_all(requests, cache=cache, watch=watch)
    step = read_compilation(done[0]) if done[0].is_good else None
    replicated, unseen = _stored(plan, step) if step else ((), ())
    last = None
    if until != "partitioned":
        done[-1], last = laid_out(done[-1])
    ops = [op.name for op in model_graph(plan.model).ops]
    return Verdict(
        plan,
        tuple(done),
        match(expected, step.collectives, ops, _small(*subject.placed())) if step else None,
        replicated,
        unseen,
        tuple(located(text, step.module) for text in step.warnings) if step else (),
        last.memory if last else None,
        compiled_time(last, plan.placed()) if last and is_timed(done[-1]) else None,
        step.collectives if step else (),
        _recomputed(step) if step else None,
        last,
    )


def _request(
    plan: Plan | ServedStep, build: str, folder: str, until: Until, python: str
) -> CompileRequest:
    return CompileRequest(
        build,
        plan.placed(),
        {"plan": subject_of(plan).text()},
        until,
        options_of(plan, until),
        folder,
        python=python,
    )


def options_of(plan: Plan | ServedStep, until: Until) -> Mapping[str, CompilerOption]:
    """A schedule is that of the options which the plan has chosen, as `train` sets them."""
    if until == "partitioned":
        return plain_collectives(plan.placed())
    return chosen_options(plan) if isinstance(plan, Plan) else {}


def _small(setting: ProgramSetting | StepSpec, dims: Mapping[str, int]) -> Small:
    """A vector of the model, or a number of each token of a device, in fp32."""
    stream, wide = Tensor("x", ("B", "T"), ((), ())), DTYPES["f32"]
    placed = setting.layout.of_activation(stream)
    tokens = device_bytes(placed, dims, setting.mesh.axes, wide)
    biases = {p.name for p in setting.graph.params if p.tensor.name.startswith("B_")}
    biased = {op.name for op in setting.graph.ops if biases.intersection(op.params)}
    if any(p.tensor.name == "Sinks" for p in setting.graph.params):
        biased.add("attention.softmax")
    vector = max(wide.nbytes(setting.graph.sizes["D"]), tokens)
    inside = frozenset({CORE_AXIS}.difference(setting.mesh.axes))
    return Small(vector, biased=frozenset(biased), inside=inside)


def _stored(
    plan: Plan | ServedStep, step: CompiledStep
) -> tuple[tuple[Replicated, ...], tuple[str, ...]]:
    """What is larger in the entry than the layout says, and what is not there to be held to it."""
    expected = subject_of(plan).stored()
    there: Counter[str] = Counter()
    for instruction in step.module.computations[step.module.entry].instructions:
        if instruction.opcode == "parameter":
            there[_path(instruction.op_name)] += instruction.nbytes
    replicated = (
        Replicated(name, there[name], nbytes)
        for name, nbytes in expected.items()
        if there[name] > nbytes
    )
    return tuple(replicated), tuple(name for name in expected if name not in there)


def _path(op_name: str) -> str:
    """The name of an argument; pages of a layer, and values beside scales, go by one."""
    name = op_name.replace("\\", "").removesuffix(".values")
    return name.partition("['")[0] if name.startswith("cache[") and _SCALE not in name else name


@dataclass(frozen=True, slots=True)
class LayoutVerdict:
    """What the compiler made of a plan, in a word, and what it found wrong."""

    word: Word
    findings: tuple[Finding, ...] = ()
    memory_bytes: int | None = None  # the compiler's total
    seconds: float = 0.0  # that compiling took

    @property
    def because(self) -> str:
        """The word, and the first reason for it."""
        if not self.findings:
            return self.word
        first = self.findings[0]
        if self.word == "does not fit" and first.nbytes:
            return f"{self.word}: {format_si(first.nbytes, 'B')} too many"
        return f"{self.word}: {first.words}"


NOT_ASKED = LayoutVerdict("not asked")


def stand(
    plans: Sequence[Plan], *, watch_of: Callable[[int], Watch | None] = lambda _: None
) -> list[LayoutVerdict]:
    """Judges one plan after another; each takes two child processes, of which each takes GBs."""
    return [_standing(plan, watch_of(place)) for place, plan in enumerate(plans)]


def _standing(plan: Plan, watch: Watch | None) -> LayoutVerdict:
    """A plan that Rooflight's own program cannot have is no reason to stop asking."""
    try:
        verdict = verify(plan, until="scheduled", watch=watch)
    except MissingExtraError:
        raise
    except UsageError as error:
        why = Finding("not_built", str(error), error.hint or "plan another layout")
        return LayoutVerdict("not compiled", (why,))
    return LayoutVerdict(
        _word(verdict),
        verdict.findings,
        verdict.memory.total_bytes if verdict.memory else None,
        max(done.seconds for done in verdict.done),
    )


def _word(verdict: Verdict) -> Word:
    if verdict.failed is None:
        return "findings" if verdict.findings else "passes"
    return "does not fit" if verdict.failed.outcome == "out of memory" else "not compiled"


def order(verdicts: Iterable[LayoutVerdict]) -> list[int]:
    """Places of those that stand first, then as `WORDS`; each as they were before."""
    words = [one.word for one in verdicts]
    return sorted(range(len(words)), key=lambda place: WORDS.index(words[place]))


def _recomputed(step: CompiledStep) -> int:
    """FLOPs that a policy recomputes; attention in tiles recomputes its scores by any."""
    tiles = ("attention.scores", "attention.mix")
    again = (w for w in step.work if w.recomputed and not any(name in w.op_name for name in tiles))
    return sum(work.flops_per_step or 0 for work in again)
