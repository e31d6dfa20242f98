"""A plan as it was saved, as an `Answer`: time, memory, what was chosen and what lost."""

from collections.abc import Iterator

from rooflight.plan.file.record import Plan
from rooflight.ui.answer import Answer, Column, Picture, Table, show_bytes, show_seconds
from rooflight.ui.svg.memory import MemoryStacks, Stack, memory_svg
from rooflight.units import format_count, format_seconds, format_si

_WHY = Column("because", "why", is_wide=True)


def plan_file_answer(plan: Plan) -> Answer:
    """The first lines are the answer, as on the terminal."""
    tokens = format_count(plan.batch * plan.seq)
    return Answer(
        sentences=(
            f"{plan.model.title} on {plan.slice}, {tokens} tokens per step: {plan.layout}",
            f"{format_seconds(plan.time.step_s)} per step, bound by {plan.binds};"
            f" {plan.mfu.value:.1%} MFU ({plan.mfu.convention}), mesh {plan.mesh}",
        ),
        pictures=(_memory(plan),),
        tables=(_time(plan), *reasons_tables(plan)),
    )


def _time(plan: Plan) -> Table:
    time = plan.time
    rows = (
        ("forecast" if time.forecast else "roofline", time.step_s),
        ("lower: everything overlaps", time.lower_s),
        ("upper: nothing does", time.upper_s),
        ("matmuls", time.matmuls_s),
        ("of these recomputed", time.recompute_s),
        ("bubble", time.bubble_s),
        *((f"collectives over {a}", s) for a, s in time.collectives_s.items()),
    )
    columns = Column("what", "what"), Column("seconds", "seconds", show_seconds)
    return Table("time", "Time of a step", columns, rows)


def _memory(plan: Plan) -> Picture:
    held = plan.memory
    parts = tuple(part.name for part in held.parts)
    stack = Stack(f"stage {held.stage}", tuple(part.nbytes for part in held.parts))
    total, room = (format_si(n, "B") for n in (held.total_bytes, held.capacity_bytes))
    title = f"A chip holds {total} of {room}"
    words = "; ".join(f"{part.name} {format_si(part.nbytes, 'B')}" for part in held.parts)
    drawn = memory_svg(MemoryStacks(title, parts, (stack,), held.capacity_bytes))
    return Picture("memory", drawn, f"{title}: {words}")


def reasons_tables(plan: Plan) -> Iterator[Table]:
    """What was chosen, and why not the others."""
    chosen = tuple((c.what, c.value, c.because) for c in plan.choices)
    columns = (Column("what", "what"), Column("value", "chosen"), _WHY)
    yield Table("choices", "What was chosen", columns, chosen)
    others = tuple((a.layout, a.mesh, a.step_s, a.hbm_bytes, a.because) for a in plan.alternatives)
    columns = (
        *(Column("layout", "layout"), Column("mesh", "mesh")),
        *(Column("step_s", "step", show_seconds), Column("hbm_bytes", "HBM", show_bytes), _WHY),
    )
    if others:
        yield Table("others", "Why not the others", columns, others)
