"""How `rooflight fit` shows its answer: a verdict, the components, the stages, what would help."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from rooflight.plan.training.memory.count import Memory
from rooflight.plan.training.memory.job import Job
from rooflight.plan.training.questions.fixes import Fit, Fix
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

_NEVER = {
    "batch": "AT ANY BATCH",
    "seq": "AT ANY SEQ",
    "chips": "ON ANY NUMBER OF CHIPS",
}


def document(model: str, answer: Fit) -> dict[str, object]:
    job, found = answer.job, answer.memory
    return {
        "model": model,
        "on": str(answer.mesh.slice),
        "mesh": str(answer.mesh),
        "layout": job.layout.text,
        "batch": job.tokens,
        "seq": job.seq,
        "recipe": job.recipe.name,
        "remat": job.remat.name,
        "zero": job.zero,
        "framework": job.framework.label,
        "microbatches": job.micro.count,
        "schedule": job.micro.schedule,
        "virtual": job.micro.virtual,
        "axes": dict(job.axes),
        "chips": _num_chips(job),
        "solve": answer.solve,
        "fits": found.fits,
        "total_bytes": found.total_bytes,
        "headroom_bytes": found.headroom_bytes,
        "chance": found.chance,
        "between_bytes": found.spread and found.spread.between(found.total_bytes),
        "extra_flops": found.extra_flops,
        **asdict(found),
        "stages": [asdict(stage) | {"total_bytes": stage.total_bytes} for stage in answer.stages],
        "fixes": [_fix_document(fix) for fix in answer.fixes],
        "together": [_fix_document(fix) for fix in answer.together],
    }


def _fix_document(fix: Fix) -> dict[str, object]:
    return {
        "change": fix.change,
        "cost": fix.cost,
        "saves_bytes": fix.saves_bytes,
        "total_bytes": fix.memory.total_bytes,
        "fits": fix.memory.fits,
    }


def _num_chips(job: Job) -> int:
    return math.prod(job.axes.values())


def text(model: str, answer: Fit, *, by_stage: bool) -> str:
    job, found = answer.job, answer.memory
    extra = f", which does {found.extra_flops:.1%} more FLOPs" if found.recompute_flops else ""
    zero = f", zero {job.zero}" if job.zero else ""
    made = "" if job.framework.name == "none" else f" as in {job.framework.label}"
    blocks = [
        f"{_verdict(answer)}{_chance(found)}\n"
        f"{model} under {job.layout.text} on {_place(answer)};"
        f" {job.batch:,} sequences of {job.seq:,} tokens\n"
        f"recipe {job.recipe.name}{made}{zero}, remat {job.remat.name}{extra}{_host(found)}"
        f"{_microbatches(job, found)}",
        _parts(found),
    ]
    if by_stage:
        blocks.append(_by_stage(answer.stages))
    if not found.fits:
        blocks += [_largest(found), _fixes(answer.fixes)]
    if answer.together:
        last = {fix.change.split()[0]: fix.change for fix in answer.together}  # halved often
        blocks.append(f"fits with all of: {'; '.join(last.values())}")
    return "\n\n".join(blocks)


def _place(answer: Fit) -> str:
    if dict(answer.job.axes) == answer.mesh.axes:
        return f"{answer.mesh.slice}, mesh {answer.mesh}"
    sizes = ",".join(f"{axis}={size}" for axis, size in answer.job.axes.items())
    return f"{answer.mesh.slice.chip.title}, mesh {sizes}"


def _microbatches(job: Job, found: Memory) -> str:
    if job.num_stages == 1:
        return (
            f"\n{job.micro.count} microbatches one after the other" if job.micro.count > 1 else ""
        )
    chunks = f" of {job.micro.virtual} chunks each" if job.micro.virtual > 1 else ""
    return (
        f"\n{job.micro.count} microbatches through {job.num_stages} stages{chunks},"
        f" {job.micro.schedule}; stage {found.stage} with {found.num_layers} layers needs most"
    )


def _by_stage(stages: Sequence[Memory]) -> str:
    names = [part.name for part in stages[0].parts]
    rows = [
        (
            str(found.stage),
            str(found.num_layers),
            *(_size(part.nbytes) for part in found.parts),
            format_si(found.total_bytes, "B"),
        )
        for found in stages
    ]
    return table(
        ("stage", "layers", *names, "total"),
        rows,
        align="r" * (len(names) + 3),
        keep=("total", "stage"),
    )


def _verdict(answer: Fit) -> str:
    job, found = answer.job, answer.memory
    used = f"{format_si(found.total_bytes, 'B')} of {format_si(found.hbm_bytes, 'B')} per chip"
    if not found.fits:
        what = f"DOES NOT FIT {_NEVER[answer.solve]}" if answer.solve else "DOES NOT FIT"
        return f"{what}: {used}, {format_si(-found.headroom_bytes, 'B')} too much"
    if answer.solve == "chips":
        return f"FEWEST CHIPS: {_num_chips(job):,} of {answer.mesh.slice.chip.title}; {used}"
    if answer.solve == "batch":
        return f"LARGEST BATCH: {job.tokens:,} tokens, {job.batch:,} sequences; {used}"
    if answer.solve == "seq":
        return f"LONGEST SEQUENCES: {job.seq:,} tokens, {job.batch:,} of them; {used}"
    return f"FITS: {used}, {format_si(found.headroom_bytes, 'B')} left"


def _chance(found: Memory) -> str:
    if found.spread is None:
        return ""
    low, high = (format_si(nbytes, "B") for nbytes in found.spread.between(found.total_bytes))
    chance, runs = f"{found.chance:.0%}".replace("100%", "over 99%"), found.spread.num_runs
    return f"\n{chance} chance to fit (90% between {low} and {high}, by {runs} measured runs)"


def _host(found: Memory) -> str:
    if not found.host_bytes:
        return ""
    seconds = "unknown" if found.offload_s is None else format_seconds(found.offload_s)
    return f", and PCIe time of {seconds} per step for {format_si(found.host_bytes, 'B')} per chip"


def _parts(found: Memory) -> str:
    rows = [
        (p.name, _size(p.nbytes), f"{p.nbytes / found.total_bytes:.0%}", p.because)
        for p in found.parts
    ]
    rows.append(("total", _size(found.total_bytes), "100%", "closed form, no compiler asked"))
    return table(("component", "a chip", "share", "why"), rows, align="lrrl")


def _size(nbytes: int) -> str:
    return format_si(nbytes, "B") if nbytes else "-"


def _largest(found: Memory) -> str:
    return "largest: " + ", ".join(f"{p.name} {_size(p.nbytes)}" for p in found.largest(3))


def _fixes(found: Sequence[Fix]) -> str:
    if not found:
        return "no single change saves anything"
    rows = [
        (
            fix.change,
            format_si(-fix.saves_bytes, "B"),
            format_si(fix.memory.total_bytes, "B"),
            "fits" if fix.memory.fits else "no",
            fix.cost,
        )
        for fix in found
    ]
    return table(
        ("one change", "saves", "total", "then", "costs"),
        rows,
        align="lrrll",
        keep=("one change", "then", "total"),
    )


def next_command(model: str, answer: Fit) -> str:
    if dict(answer.job.axes) != answer.mesh.axes:  # other chips than asked: no slice to name
        return f"rooflight model {model}"
    if answer.memory.fits:
        return f"rooflight explain train {_where(model, answer, answer.job)}"
    here = [f.job for f in answer.fixes if f.memory.fits and f.job.axes == answer.job.axes]
    here += [fix.job for fix in answer.together[-1:]]
    if not here:
        return f"rooflight model {model}"
    best = here[0]
    return (
        f"rooflight fit train {_where(model, answer, best)}"
        f" --recipe {best.recipe.name} --remat {best.remat.name} --zero {best.zero}"
        f"{_in_time(best)}"
    )


def _in_time(job: Job) -> str:
    """The flags of what differs from one microbatch and the closed form."""
    micro = job.micro
    flags = f" --microbatches {micro.count}" if micro.count > 1 else ""
    if job.num_stages > 1:
        flags += f" --schedule {micro.schedule}"
        flags += f" --virtual {micro.virtual}" if micro.schedule == "interleaved" else ""
    return flags + ("" if job.framework.name == "none" else f" --framework {job.framework.label}")


def _where(model: str, answer: Fit, job: Job) -> str:
    return (
        f"{model} --layout {job.layout.text} --on {answer.mesh.slice}"
        f" --mesh {answer.mesh} --batch {job.tokens} --seq {job.seq}"
    )
