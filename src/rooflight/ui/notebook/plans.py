"""A plan as HTML: what was decided and why, its time, its memory, what lost."""

from rooflight.plan.file.record import Plan
from rooflight.ui.html.page import Grid, figure, grid, paragraph
from rooflight.ui.notebook.frame import framed
from rooflight.ui.svg.memory import MemoryStacks, Stack, memory_svg
from rooflight.units import format_count, format_seconds, format_si


def plan_html(plan: Plan) -> str:
    """The first lines are the answer, as on the terminal."""
    tokens = format_count(plan.batch * plan.seq)
    heading = f"{plan.model.title} on {plan.slice}, {tokens} tokens per step: {plan.layout}"
    words = (
        f"{format_seconds(plan.time.step_s)} per step, bound by {plan.binds};"
        f" {plan.mfu.value:.1%} MFU ({plan.mfu.convention}), mesh {plan.mesh}"
    )
    return framed(heading, paragraph(words), _time(plan), _memory(plan), _why(plan), *_lost(plan))


def _time(plan: Plan) -> str:
    time = plan.time
    rows = [
        ("forecast" if time.forecast else "roofline", format_seconds(time.step_s)),
        ("lower: everything overlaps", format_seconds(time.lower_s)),
        ("upper: nothing does", format_seconds(time.upper_s)),
        ("matmuls", format_seconds(time.matmuls_s)),
        ("of these recomputed", format_seconds(time.recompute_s)),
        ("bubble", format_seconds(time.bubble_s)),
        *((f"collectives over {a}", format_seconds(s)) for a, s in time.collectives_s.items()),
    ]
    return grid(Grid("time of a step", ("what", "seconds"), tuple(rows), "lr"))


def _memory(plan: Plan) -> str:
    held = plan.memory
    parts = tuple(part.name for part in held.parts)
    stack = Stack(f"stage {held.stage}", tuple(part.nbytes for part in held.parts))
    total, room = (format_si(n, "B") for n in (held.total_bytes, held.capacity_bytes))
    title = f"A chip holds {total} of {room}"
    picture = memory_svg(MemoryStacks(title, parts, (stack,), held.capacity_bytes))
    words = "; ".join(f"{part.name} {format_si(part.nbytes, 'B')}" for part in held.parts)
    return figure(picture, caption=title, describe=words)


def _why(plan: Plan) -> str:
    rows = tuple((choice.what, choice.value, choice.because) for choice in plan.choices)
    return grid(Grid("chosen, and why", ("what", "value", "because"), rows, "llw"))


def _lost(plan: Plan) -> list[str]:
    rows = tuple(
        (
            other.layout,
            other.mesh,
            format_seconds(other.step_s),
            format_si(other.hbm_bytes, "B"),
            other.because,
        )
        for other in plan.alternatives
    )
    header = ("layout", "mesh", "step", "HBM", "because")
    return [grid(Grid("what lost", header, rows, "llrrw"))] if rows else []
