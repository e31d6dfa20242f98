"""One instruction in words: what it is, where it lives, what feeds it, how often, from where."""

from rooflight.compile.hlo.instruction import Computation, Instruction, Module, Shape
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.hlo.work import FlopCounter, recomputed_by
from rooflight.errors import UnknownNameError
from rooflight.units import format_count, format_si

_WORDS = {
    "fusion": "several operations fused into one",
    "convolution": "a matmul, which a TPU writes as a convolution",
    "dot": "a matmul",
    "copy": "a copy, often into another layout or memory",
    "copy-start": "the start of a copy that runs in the background",
    "copy-done": "the wait for a copy that ran in the background",
    "while": "a loop",
    "parameter": "an argument",
    "constant": "a constant",
    "get-tuple-element": "one element of a tuple",
    "all-gather": "every device gets the parts of all",
    "all-reduce": "every device gets the sum of all",
    "reduce-scatter": "every device gets its part of the sum",
    "all-to-all": "every device sends every other one a part",
    "collective-permute": "every device hands its block on",
    "collective-permute-start": "the start of handing blocks on",
    "collective-permute-done": "the wait for a block that is handed on",
    "custom-call": "a kernel or a note to the compiler",
    "async-start": "the start of something that runs in the background",
    "async-done": "the wait for something that ran in the background",
}


def explain(step: CompiledStep, name: str) -> list[str]:
    """What there is to say of an instruction, a sentence a line."""
    module = step.module
    found = module.find(name)
    if found is None:
        names = [i.name for c in module.computations.values() for i in c.instructions]
        start = name.lstrip("%")[:4].lower()  # cheap among a hundred thousand: those alike so far
        alike = [n for n in names if n.lower().startswith(start)][:4] or names[-3:]
        raise UnknownNameError("op", name, names, hint=f"for instance {', '.join(alike)}")
    computation, instruction = found
    name, opcode = instruction.name, instruction.opcode
    target = instruction.attribute("custom_call_target") if opcode == "custom-call" else None
    return [
        f"{name}: {opcode}{f' {target}' if target else ''}, {_WORDS.get(opcode, 'an operation')}.",
        *(line for shape in instruction.shapes[:4] for line in _where(shape)),
        *_collective(step, instruction),
        *_work(module, computation, instruction),
        _often(step, computation),
        *_fed_by(computation, instruction),
        *_used_by(computation, instruction),
        *_origin(module, instruction),
    ]


def _where(shape: Shape) -> list[str]:
    """Shape, memory, layout, and what the padding of tiles wastes."""
    text = f"{shape}: {format_si(shape.nbytes, 'B')} in {shape.memory}"
    if not shape.layout:
        return [text + "."]
    order = shape.layout.partition(":")[0]
    if len(shape.dims) > 1:
        text += f"; dims from fastest to slowest {order}"
    tile = shape.tile
    if not tile:
        return [text + "."]
    text += f"; tiles of {'x'.join(map(str, tile))}"
    waste = shape.padded_bytes - shape.nbytes
    if waste <= 0 or not shape.dims:
        return [text + ", none padded." if shape.dims else text + "."]
    part = waste / shape.padded_bytes
    return [f"{text}, padded to {format_si(shape.padded_bytes, 'B')}: {part:.0%} waste."]


def _collective(step: CompiledStep, instruction: Instruction) -> list[str]:
    found = next((c for c in step.collectives if c.name == instruction.name), None)
    if found is None:
        return []
    axes = "axes unknown" if found.axes is None else f"over {'+'.join(found.axes) or 'no axis'}"
    kind = found.kind.replace("_", "-")
    article = "an" if kind.startswith("a") else "a"
    lines = [f"It is {article} {kind} {axes} of {format_si(found.nbytes, 'B')} ({found.form})."]
    if found.overlapped:
        lines.append(f"Between its start and done: {', '.join(found.overlapped[:6])}.")
    elif found.is_exposed:
        lines.append("Nothing runs meanwhile: the device waits.")
    if found.algorithm:
        lines.append(f"The compiler chose {found.algorithm}.")
    return lines


def _work(module: Module, computation: Computation, instruction: Instruction) -> list[str]:
    flops = FlopCounter(module).of(computation, instruction)
    lines = [f"Its matmuls are {format_si(flops, 'FLOP')}."] if flops else []
    if flops is None:
        lines.append("Its FLOPs are unknown: a kernel does not say.")
    if cycles := instruction.estimated_cycles:
        lines.append(f"The compiler estimates {format_count(cycles)} cycles.")
    if who := recomputed_by(instruction):
        lines.append(f"It is computed a second time; the {who} asked for that, to save memory.")
    return lines


def _often(step: CompiledStep, computation: Computation) -> str:
    run = step.runs.get(computation.name)
    if run is None:
        return f"It is part of {computation.name}, which others call."
    around = ", ".join(loop.name for loop in run.loops)
    count = "an unknown number of times" if run.count is None else f"{run.count:,} times"
    count = "once" if run.count == 1 else count
    return f"It runs {count} per step" + (f", in {around}." if around else ".")


def _fed_by(computation: Computation, instruction: Instruction) -> list[str]:
    inputs = computation.inputs(instruction)
    if not inputs:
        return []
    shown = [f"{i.name} ({i.opcode} {i.shapes[0] if i.shapes else '()'})" for i in inputs[:4]]
    more = f" and {len(inputs) - 4} more" if len(inputs) > 4 else ""
    return [f"Fed by {', '.join(shown)}{more}."]


def _used_by(computation: Computation, instruction: Instruction) -> list[str]:
    names = [i.name for i in computation.instructions if instruction.name in i.operands]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return [f"Used by {', '.join(names[:4])}{more}."] if names else []


def _origin(module: Module, instruction: Instruction) -> list[str]:
    lines = [f"The program calls it {instruction.op_name}."] if instruction.op_name else []
    source = module.source(instruction)
    return [*lines, f"From {source}."] if source else lines
