"""Compiler options that change the schedule of a step: which help this program, and by how much.

In: a `Plan`. Out: a `Sweep`: the compiled step's time at the compiler's defaults, with each set of
options, and with all that help together. Every one is compiled to the end; times are the compiler's
estimates and our network model (`compile.time.step`), not measured.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from rooflight.compile.aot.request import PLAIN_COLLECTIVES, CompileRequest, CompilerOption
from rooflight.compile.aot.run import Compilation, Watch, compile_all, read_compilation
from rooflight.compile.findings.subject import BUILD
from rooflight.compile.time.step import compiled_time
from rooflight.plan.file.record import Plan, to_json

Options = Mapping[str, CompilerOption]
_LEAST = 0.01  # of the step; less is within what the estimates are good for
SETS: Mapping[str, Options] = {
    "asynchronous all-gathers": {
        "xla_tpu_enable_async_collective_fusion": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
        "xla_enable_async_all_gather": "true",
    },
    "gradient sums as one": {
        "xla_tpu_enable_data_parallel_all_reduce_opt": True,
        "xla_tpu_data_parallel_opt_different_sized_ops": True,
    },
    "no collective matmuls": PLAIN_COLLECTIVES,
    "no latency hiding": {"xla_tpu_enable_latency_hiding_scheduler": False},
    "twice the scoped memory": {"xla_tpu_scoped_vmem_limit_kib": "32768"},
    "four times the scoped memory": {"xla_tpu_scoped_vmem_limit_kib": "65536"},
}


def chosen_options(plan: Plan) -> dict[str, CompilerOption]:
    """Those that its plan has chosen, of the types that the compiler takes them in."""
    known = {name: value for options in SETS.values() for name, value in options.items()}
    return {
        name: known[name] if _text(known.get(name)) == value else value
        for name, value in plan.compiler_options.items()
    }


def _text(value: CompilerOption | None) -> str:
    return str(value).lower()


@dataclass(frozen=True, slots=True)
class Tried:
    """A set of options; without seconds, the compiler did not get through with it."""

    name: str
    options: Options
    seconds: float | None
    outcome: str

    @property
    def text(self) -> str:
        """As the compiler takes them."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.options.items())


@dataclass(frozen=True, slots=True)
class Sweep:
    """The default first, then every set, then those that help together if there are several."""

    tried: tuple[Tried, ...]
    versions: Mapping[str, str]

    @property
    def default_s(self) -> float | None:
        return self.tried[0].seconds

    @property
    def helping(self) -> tuple[Tried, ...]:
        """Those that save a hundredth of the step or more, the fastest first."""
        if self.default_s is None:
            return ()
        least = self.default_s * (1 - _LEAST)
        found = [(one.seconds, one) for one in self.tried if one.seconds is not None]
        return tuple(one for s, one in sorted(found, key=lambda pair: pair[0]) if s <= least)


def sweep_flags(plan: Plan, *, watch: Watch | None = None) -> Sweep:
    """Compiles a plan with each set of options, two at a time."""
    default: Options = {}
    sets = {"default": default, **SETS}
    done = _compile(plan, sets.values(), watch)
    tried = [_tried(name, one, plan) for name, one in zip(sets, done, strict=True)]
    first = Sweep(tuple(tried), done[0].versions)
    if len(first.helping) < 2:
        return first
    both = {name: value for one in first.helping for name, value in one.options.items()}
    name = " and ".join(one.name for one in first.helping)
    after = partial(_one_more, watch, len(sets)) if watch else None
    together = _tried(name, _compile(plan, [both], after)[0], plan)
    return Sweep((*tried, together), first.versions)


def _one_more(watch: Watch, before: int, which: int, phase: str, seconds: float) -> None:
    """For who watches, the compiles after the first ones are more of the same."""
    watch(before + which, phase, seconds)


def _compile(plan: Plan, sets: Iterable[Options], watch: Watch | None) -> list[Compilation]:
    mesh, arguments = plan.placed(), {"plan": to_json(plan)}
    requests = [
        CompileRequest(BUILD, mesh, arguments, "executable", options=options) for options in sets
    ]
    return compile_all(requests, watch=watch)


def _tried(name: str, done: Compilation, plan: Plan) -> Tried:
    seconds = None
    if done.is_good:
        seconds = compiled_time(read_compilation(done), plan.placed()).seconds
    return Tried(name, done.request.options, seconds, done.outcome)
