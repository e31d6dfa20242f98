"""What a program does or keeps more than once: FLOPs, arguments, copies, padding, empty waits.

In: compiled steps and the mesh. Out: findings in seconds of work or bytes of memory.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from rooflight.compile.aot.arguments import Argument, spec_text
from rooflight.compile.expected.flow import ELEMENTWISE, SAME_ELEMENTS, Flow, Place
from rooflight.compile.findings.finding import Edit, Finding, collective_seconds, merged
from rooflight.compile.hlo.instruction import Instruction
from rooflight.compile.hlo.manual import manual_parts
from rooflight.compile.hlo.parse import is_installed
from rooflight.compile.hlo.step import CompiledStep
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Mesh
from rooflight.units import format_count

_IN_PLACE = ("dynamic-update-slice", "scatter")
_HANDED_ON = (
    *(*ELEMENTWISE, *SAME_ELEMENTS, *_IN_PLACE),
    *("dynamic-slice", "slice", "get-tuple-element", "parameter", "call"),
)
_ROOT = re.compile(r"^\w+")
_MOST = 4096

_MORE = 1.02  # times its share of the FLOPs: below, it is the rounding of small shapes
_MOST_ALIKE = 1 / 8  # of a device's memory may hold what every other device holds too
_COPY_SHARE = 0.05  # of the step: the compiler chooses layouts, and some copies are in any program
_NOT_MADE = ("bitcast", "get-tuple-element", "after-all", "copy-done", "constant")
_EMPTY_FORMS = ("async", "async fusion", "offloaded", "dcn")


def find_repeated_work(
    given: CompiledStep, found: CompiledStep, chip: Chip, axes: Mapping[str, int]
) -> Iterator[Finding]:
    """Lines whose matmuls all devices together do more often than the program says.

    The module that the compiler was given has whole shapes, or inside `jax.shard_map` those of
    one of some parts, so its FLOPs are those of the program; a device should do one share of them.
    """
    devices = math.prod(axes.values())
    parts = manual_parts(given, axes)
    wanted, done = _flops_by_line(given, parts), _flops_by_line(found, {})
    manual = {work.source for work in given.work if work.name in parts}
    peak = chip.peak_flops(chip.matmul_dtype("bf16"))
    for line, by_name in done.items():
        flops, share = by_name.total(), wanted[line].total() / devices
        times = flops / share if share else 1.0
        if times < _MORE:
            continue
        # The forward pass of a line may be repeated over an axis and the backward pass over none.
        each = [
            n * devices / wanted[line][name] for name, n in by_name.items() if wanted[line][name]
        ] or [times]  # a function that was exported has other names when it is compiled
        alike = {_axis_of(each_times, axes) for each_times in each if each_times >= _MORE}
        over = alike.pop() if len(alike) == 1 else ""
        yield Finding(
            "repeated",
            f"the matmuls of this line are done {times:.3g} times over"
            + (f", alike on every device of {over}" if over else ""),
            _spread(over, axes, line in manual),
            seconds=(flops - share) / peak,
            where=line,
        )


def _spread(over: str, axes: Mapping[str, int], is_manual: bool) -> str:
    if is_manual:
        return (
            f"split an operand of this shard_map over {over or 'one more axis'}: name it in"
            " in_specs; with_sharding_constraint splits over axes that are not manual only"
        )
    if over:
        return (
            f"split a dim of an operand over {over}: constrain it with with_sharding_constraint"
            f" before this line, or store the weight with {over} in its spec (padded, if no dim of"
            f" it divides by {math.prod(axes[axis] for axis in over.split('+'))})"
        )
    return (
        "split a dim of every operand before this line (with_sharding_constraint), one that divides"
        f" by its axis ({_text(axes)})"
    )


def _text(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in axes.items())


def _flops_by_line(step: CompiledStep, parts: Mapping[str, int]) -> dict[str, Counter[str]]:
    """By line and by the name of what the program does there."""
    lines: dict[str, Counter[str]] = defaultdict(Counter)
    for work in step.work:
        if work.source and work.flops_per_step:
            lines[work.source][work.op_name] += work.flops_per_step * parts.get(work.name, 1)
    return lines


def _axis_of(times: float, axes: Mapping[str, int]) -> str:
    """The axes whose size is that of the repetition, if it can only be those."""
    names = list(axes)
    sets = [
        [name for at, name in enumerate(names) if chosen >> at & 1]
        for chosen in range(1, 1 << len(names))
    ]
    close = [s for s in sets if abs(math.prod(axes[a] for a in s) / times - 1) < _MORE - 1]
    return "+".join(close[0]) if len(close) == 1 else ""


def find_replicated(
    arguments: Sequence[Argument], chip: Chip, axes: Mapping[str, int]
) -> Iterator[Finding]:
    """Arguments that every device of an axis holds alike, and need not.

    Need not: a device cuts its part out before use; most of the same tree is split over the axis;
    or nothing is split over it and together they fill too much of the memory.
    """
    known = [a for a in arguments if a.spec is not None and not a.is_integer]
    for axis, size in axes.items():
        alike = [a for a in known if axis not in a.axes]
        fill = sum(a.device_bytes for a in alike) > _MOST_ALIKE * (chip.hbm_bytes or math.inf)
        for argument in alike if size > 1 else ():
            tree = [a for a in known if a.root == argument.root]
            split = sum(a.nbytes for a in tree if axis in a.axes)
            is_odd = 2 * split > sum(a.nbytes for a in tree)
            if axis in argument.cut or is_odd or (fill and len(alike) == len(known)):
                yield _replicated(argument, axis, axes)


def _replicated(argument: Argument, axis: str, axes: Mapping[str, int]) -> Finding:
    spec, size = argument.split_further(axis, axes), axes[axis]
    fix = (
        f"give it {spec_text(spec)}" if spec else f"no dim of it divides by {axis}={size}: pad one"
    )
    return Finding(
        "replicated",
        f"{argument.name} is the same on every device of {axis}",
        fix,
        nbytes=argument.device_bytes - argument.device_bytes // size,
        where=argument.where,
        edits=(Edit("argument", argument.name, spec),) if spec else (),
    )


def find_schedule_waste(
    step: CompiledStep, mesh: Mesh, step_s: float, updates: Container[str]
) -> Iterator[Finding]:
    """Copies, padding and empty waits of a scheduled step, which takes at least `step_s`.

    A copy at a line that updates what was not donated is the old one, and no finding of its own.
    """
    copies = (c for c in merged(_copies(step, mesh.slice.chip)) if c.where not in updates)
    yield from (c for c in copies if (c.seconds or 0.0) >= _COPY_SHARE * step_s)
    yield from _padding(step, mesh.slice.chip)
    for found in step.collectives:
        if found.form in _EMPTY_FORMS and found.is_exposed:
            yield Finding(
                "waits",
                f"{found.kind.replace('_', '-')} over {'+'.join(found.axes or ('unknown axes',))}"
                f" of {found.dtype} is started and waited for with nothing in between",
                "leave it something to hide behind: matmuls of this layer that do not need it, or"
                " more rows per device",
                seconds=collective_seconds(found, mesh),
                where=found.source,
            )


def _copies(step: CompiledStep, chip: Chip) -> Iterator[Finding]:
    rate = chip.hbm_bytes_per_s
    for work in step.moves:
        if work.count is None or not rate or work.opcode == "copy-start":
            continue
        yield Finding(
            "copy",
            f"{work.shape} is copied to another layout",
            "order the dims as the matmuls read them; in a loop, carry an array that changes and"
            " update it in place (.at[].set) instead of taking it as xs and returning it as ys",
            seconds=2 * work.nbytes * work.count / rate,
            where=work.source,
        )


def _padding(step: CompiledStep, chip: Chip) -> Iterator[Finding]:
    """Arrays that are mostly tiles filled with nothing: at the peak, or passed over in a step."""
    peak = {b.name.partition("{")[0] for b in step.memory.peak} if step.memory else set[str]()
    for name, execution in step.runs.items():
        for value in step.module.computations[name].instructions:
            shapes = value.shapes
            if value.opcode in _NOT_MADE or len(shapes) != 1 or shapes[0].memory != "HBM":
                continue
            shape, wasted = shapes[0], shapes[0].padded_bytes - shapes[0].nbytes
            is_held = value.name in peak
            passed = 2 * wasted * (execution.count or 1) / (chip.hbm_bytes_per_s or math.inf)
            if wasted * 2 > shape.padded_bytes:
                yield Finding(
                    "padding",
                    f"{shape} takes {shape.padded_bytes / shape.nbytes:.1f} times its bytes: its"
                    " last dims are smaller than a tile",
                    f"make the last two dims multiples of {'x'.join(map(str, shape.tile))}, or"
                    " join small ones",
                    seconds=None if is_held else passed,
                    nbytes=wasted,
                    where=step.module.source(value),
                )


def find_host_calls(step: CompiledStep) -> Iterator[Finding]:
    """Lines that call the host in every step; under a condition only some steps may."""
    flow = Flow(step.module)
    lines: dict[str, list[tuple[str, int | None, int]]] = {}
    for name, execution in step.runs.items():
        for value in step.module.computations[name].instructions:
            if _meets_host(value) and not flow.is_conditional(name):
                nbytes = value.shapes[0].nbytes if value.shapes else 0
                call = (value.op_name.rpartition("/")[2], execution.count, nbytes)
                lines.setdefault(step.module.source(value), []).append(call)
    for line, calls in lines.items():
        name, count, _ = calls[0]
        times = f", {format_count(count)} times per step" if count and count > 1 else ""
        yield Finding(
            "host_callback",
            f"{name} calls the host{times}, and the step waits for the answer",
            "return the value, and use it on the host after the step; or call under a jax.lax.cond"
            " that few steps enter",
            nbytes=sum((times or 1) * nbytes for _, times, nbytes in calls),
            where=line,
        )


def _meets_host(value: Instruction) -> bool:
    target = value.attribute("custom_call_target") or ""
    is_sent = value.opcode in ("send", "recv") and "is_host_transfer=true" in value.attributes
    return is_sent or value.opcode in ("infeed", "outfeed") or "callback" in target


def find_updates(
    step: CompiledStep, arguments: Sequence[Argument], results: Sequence[str]
) -> dict[str, str]:
    """Name of every argument that is returned updated and is not donated -> the line that does it.

    A result is an update if it has the argument's place in the tree, or is written into it.
    """
    flow, module = Flow(step.module), step.module
    entry = module.computations[module.entry]
    returned = entry.inputs(entry.root) if entry.root.opcode == "tuple" else [entry.root]
    paths = results if len(results) == len(returned) else [""] * len(returned)
    names = {a.name for a in arguments}
    found: dict[str, str] = {}
    for result, path in zip(returned, paths, strict=True):
        for origin, is_in_place in _origins(flow, (entry, result)):
            name = origin.op_name.replace("\\", "")
            leaf = _ROOT.sub("", name)
            is_same = is_in_place or (leaf and path.endswith(leaf))
            if origin.shapes == result.shapes and is_same and name in names - found.keys():
                if int(origin.body) not in module.donated:
                    found[name] = _own_line(flow, (entry, result))
                break
    return found


def _own_line(flow: Flow, place: Place) -> str:
    """The line that made a value; of the result of a manual region, a line inside it."""
    line = flow.module.source(place[1])
    for _ in range(_MOST):
        before = flow.made_from(place) if is_installed(flow.module.source(place[1])) else []
        if not before:
            break
        place = before[0]
    return flow.module.source(place[1]) or line


def _origins(flow: Flow, place: Place) -> Iterator[tuple[Instruction, bool]]:
    """Arguments that a value is made from element by element, and whether any is written into.

    Not by the backward pass: a gradient of weight decay has the weight in it, and is no update.
    """
    waiting, seen = [(place, False)], {place[1].name}
    if place[1].opcode == "parameter":
        return
    while waiting and len(seen) < _MOST:
        (computation, value), in_place = waiting.pop()
        if value.opcode == "parameter" and computation.name == flow.module.entry:
            yield value, in_place
            continue
        if value.opcode not in _HANDED_ON or flow.is_backward((computation, value)):
            continue
        for before in flow.made_from((computation, value)):
            if before[1].name not in seen:
                seen.add(before[1].name)
                waiting.append((before, in_place or value.opcode in _IN_PLACE))


def undonated_findings(
    updates: Mapping[str, str], arguments: Iterable[Argument]
) -> Iterator[Finding]:
    """One finding for all leaves of a parameter, at the line of the largest."""
    trees: dict[str, list[Argument]] = {}
    for argument in arguments:
        if argument.name in updates:
            trees.setdefault(argument.root, []).append(argument)
    for root, leaves in trees.items():
        arrays = f", {format_count(len(leaves))} arrays," if len(leaves) > 1 else ""
        yield Finding(
            "not_donated",
            f"{root}{arrays} is returned updated and not donated: old and new are held at once",
            f"jax.jit(..., donate_argnames='{root}'): it is then updated in place",
            nbytes=sum(leaf.device_bytes for leaf in leaves),
            where=updates[max(leaves, key=lambda leaf: leaf.device_bytes).name],
            edits=(Edit("donate", root),),
        )
