"""`rooflight plan train --flags`: the compiler options that help the first layout."""

from dataclasses import replace

from rooflight.cli.compile_progress import compile_progress
from rooflight.compile.aot.flags import Sweep, Tried, sweep_flags
from rooflight.errors import UsageError
from rooflight.plan.file.record import Decision, Plan
from rooflight.plan.training.search.candidate import Question
from rooflight.units import format_seconds


def require_flags(question: Question) -> None:
    """Fails before the search where no time could be composed."""
    if question.on.chip.kind == "gpu":
        raise UsageError(
            f"no compiler options are known for {question.on.chip.title}",
            hint="leave --flags out, or plan for TPUs",
        )


def swept(plan: Plan) -> tuple[Plan, str]:
    """The plan with the options that help as its choices, and the same in words."""
    with compile_progress() as watch:
        found = sweep_flags(plan, watch=watch)
    chosen = [
        Decision("compiler options", one.text, _because(found, one)) for one in found.helping[:1]
    ]
    return replace(plan, choices=(*plan.choices, *chosen)), _words(found)


def _words(found: Sweep) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    if found.default_s is None:
        return f"compiler options were not tried: the compiler: {found.tried[0].outcome}"
    start = f"compiled step: {format_seconds(found.default_s)} with the compiler's own options"
    asked = f"({versions}; estimated, not measured)"
    if not found.helping:
        return f"{start}; none of {len(found.tried) - 1} others saves 1 % {asked}"
    lines = [f"{start} {asked}; less with"]
    lines += [f"  {_saved(found, one)}  {one.name}: {one.text}" for one in found.helping]
    return "\n".join(lines)


def _saved(found: Sweep, one: Tried) -> str:
    assert one.seconds is not None and found.default_s is not None, "it helps"
    share = 1 - one.seconds / found.default_s
    return f"{format_seconds(one.seconds)} (-{share:.0%})"


def _because(found: Sweep, one: Tried) -> str:
    assert found.default_s is not None, "it helps"
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    default = format_seconds(found.default_s)
    return f"{one.name}: {_saved(found, one)} instead of {default} by the estimates of {versions}"
