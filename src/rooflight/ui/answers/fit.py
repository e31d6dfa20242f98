"""Whether a training step fits: what a chip holds, part by part, and what would help."""

import math
from collections.abc import Iterator, Sequence

from rooflight.plan.training.memory.count import Memory
from rooflight.plan.training.memory.job import Job
from rooflight.plan.training.questions.fixes import Fit, Fix
from rooflight.ui.answer import Answer, Column, Picture, Table, Value, show_bytes
from rooflight.units import format_seconds, format_si

_NEVER = {"batch": "AT ANY BATCH", "seq": "AT ANY SEQ", "chips": "ON ANY NUMBER OF CHIPS"}
_DRAWN = 3  # changes that fit, beside what was asked


def fit_answer(found: Fit, model: str = "the model", *, by_stage: bool = False) -> Answer:
    """The verdict, the job it is of, the parts; where it does not fit, each change alone."""
    job, held = found.job, found.memory
    layout = f"{model} under {job.layout.text} on {_place(found)}"
    made = "" if job.framework.name == "none" else f" as in {job.framework.label}"
    stages = [_stages(found.stages)] if by_stage else []
    extra = f", which does {held.extra_flops:.1%} more FLOPs" if held.recompute_flops else ""
    zero = f", zero {job.zero}" if job.zero else ""
    return Answer(
        (
            _verdict(found),
            *_chance(held),
            f"{layout}; {job.batch:,} sequences of {job.seq:,} tokens",
            f"recipe {job.recipe.name}{made}{zero}, remat {job.remat.name}{extra}{_host(held)}",
            *_microbatches(job, held),
        ),
        tables=(parts_table(held), *stages, *_fixes(found.fixes)),
        notes=() if held.fits else tuple(_too_much(found)),
        pictures=(Picture("memory", _drawn(found), "What a chip holds, against what it has."),),
    )


def num_chips(job: Job) -> int:
    return math.prod(job.axes.values())


def _place(found: Fit) -> str:
    if dict(found.job.axes) == found.mesh.axes:
        return f"{found.mesh.slice}, mesh {found.mesh}"
    sizes = ",".join(f"{axis}={size}" for axis, size in found.job.axes.items())
    return f"{found.mesh.slice.chip.title}, mesh {sizes}"


def _microbatches(job: Job, held: Memory) -> Iterator[str]:
    micro = job.micro
    if job.num_stages > 1:
        chunks = f" of {micro.virtual} chunks each" if micro.virtual > 1 else ""
        yield (
            f"{micro.count} microbatches through {job.num_stages} stages{chunks}, {micro.schedule};"
            f" stage {held.stage} with {held.num_layers} layers needs most"
        )
    elif micro.count > 1:
        yield f"{micro.count} microbatches one after the other"


def _verdict(found: Fit) -> str:
    job, held = found.job, found.memory
    used = f"{format_si(held.total_bytes, 'B')} of {format_si(held.hbm_bytes, 'B')} per chip"
    if not held.fits:
        what = f"DOES NOT FIT {_NEVER[found.solve]}" if found.solve else "DOES NOT FIT"
        return f"{what}: {used}, {format_si(-held.headroom_bytes, 'B')} too much"
    if found.solve == "chips":
        return f"FEWEST CHIPS: {num_chips(job):,} of {found.mesh.slice.chip.title}; {used}"
    if found.solve == "batch":
        return f"LARGEST BATCH: {job.tokens:,} tokens, {job.batch:,} sequences; {used}"
    if found.solve == "seq":
        return f"LONGEST SEQUENCES: {job.seq:,} tokens, {job.batch:,} of them; {used}"
    return f"FITS: {used}, {format_si(held.headroom_bytes, 'B')} left"


def _chance(held: Memory) -> Iterator[str]:
    if held.spread is not None:
        low, high = (format_si(nbytes, "B") for nbytes in held.spread.between(held.total_bytes))
        chance, runs = f"{held.chance:.0%}".replace("100%", "over 99%"), held.spread.num_runs
        yield f"{chance} chance to fit (90% between {low} and {high}, by {runs} measured runs)"


def _host(held: Memory) -> str:
    if not held.host_bytes:
        return ""
    seconds = "unknown" if held.offload_s is None else format_seconds(held.offload_s)
    return f", and PCIe time of {seconds} per step for {format_si(held.host_bytes, 'B')} per chip"


def parts_table(held: Memory) -> Table:
    columns = (
        Column("part", "component"),
        Column("bytes", "per chip", show_bytes),
        Column("share", "share", "{:.0%}".format),
        Column("because", "why", is_wide=True),
    )
    total = held.total_bytes
    rows: list[tuple[Value, ...]] = [
        (p.name, p.nbytes or None, p.nbytes / total, p.because) for p in held.parts
    ]
    rows.append(("total", total, 1.0, "closed form, no compiler asked"))
    return Table("memory", "What a chip holds, part by part", columns, tuple(rows), is_first=True)


def _stages(stages: Sequence[Memory]) -> Table:
    parts = [part.name for part in stages[0].parts]
    columns = (
        *(Column("stage", "stage"), Column("layers", "layers")),
        *(Column(name, name, show_bytes) for name in (*parts, "total")),
    )
    rows = tuple(
        (
            held.stage,
            held.num_layers,
            *(part.nbytes or None for part in held.parts),
            held.total_bytes,
        )
        for held in stages
    )
    return Table("stages", "Every pipeline stage", columns, rows, keep=("total", "stage"))


def _too_much(found: Fit) -> Iterator[str]:
    """The largest parts, and what to change together where no change is enough alone."""
    largest = found.memory.largest(3)
    yield ""
    yield "largest: " + ", ".join(f"{p.name} {format_si(p.nbytes, 'B')}" for p in largest)
    if found.together:
        last = {fix.change.split()[0]: fix.change for fix in found.together}  # halved often
        yield f"fits with all of: {'; '.join(last.values())}"
    elif not found.fixes:
        yield "no single change saves anything"


def _fixes(fixes: Sequence[Fix]) -> Iterator[Table]:
    columns = (
        *(Column("change", "one change"), Column("saves", "saves", show_bytes)),
        *(Column("total", "total", show_bytes), Column("fits", "then"), Column("cost", "costs")),
    )
    rows = tuple(
        (f.change, -f.saves_bytes, f.memory.total_bytes, "fits" if f.memory.fits else "no", f.cost)
        for f in fixes
    )
    if rows:
        keep = ("one change", "then", "total")
        yield Table("fixes", "Each change alone", columns, rows, keep=keep)


def _drawn(found: Fit) -> str:
    """A bar of what was asked, and of the first changes that fit."""
    from rooflight.ui.svg.memory import MemoryStacks, Stack, memory_svg  # a terminal draws none

    names = [part.name for part in found.memory.parts]
    shown = [("as asked" if found.solve is None else "as found", found.memory)]
    shown += [(fix.change, fix.memory) for fix in found.fixes[:_DRAWN] if fix.memory.fits]
    stacks: list[Stack] = []
    for label, held in shown:
        sizes = {part.name: part.nbytes for part in held.parts}
        stacks.append(Stack(label, tuple(sizes.get(name, 0) for name in names)))
    title, room = "What a chip holds at its fullest", found.memory.hbm_bytes
    return memory_svg(MemoryStacks(title, tuple(names), tuple(stacks), room))
