"""Draws random shardings, executes every derived strategy on fake devices, compares with numpy.

Run as a process of its own, because the number of fake devices is fixed when jax starts:
`python derivation_worker.py SEED CASES`. Prints one JSON object. Values are small integers, so
every sum is exact and every comparison is equality.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=16"
    " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # compile 3x faster
)

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from rooflight.algebra.autodiff import backward
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import Contraction, Tensor
from rooflight.algebra.reshard import reshard
from rooflight.algebra.steps import Step
from rooflight.program.execute import execute, input_spec

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

# Mesh and its weight: a case of four axes has ten times the strategies of a case of one.
MESHES = (
    ({"X": 2}, 12),
    ({"X": 4}, 16),
    ({"X": 3}, 8),
    ({"X": 2, "Y": 2}, 16),
    ({"X": 4, "Y": 2}, 16),
    ({"X": 2, "Y": 3}, 10),
    ({"X": 4, "Y": 4}, 12),
    ({"X": 2, "Y": 2, "Z": 2}, 5),
    ({"X": 2, "Y": 4, "Z": 2}, 3),
    ({"X": 2, "Y": 2, "Z": 3}, 1),
    ({"X": 2, "Y": 2, "Z": 2, "W": 2}, 1),
)
BATCH = 48  # programs compiled together; one compile each would take five times as long


@dataclass
class Program:
    """One list of steps to run, its inputs, and what every device must hold afterwards."""

    label: str
    steps: tuple[Step, ...]
    inputs: tuple[Tensor, ...]
    arrays: tuple[Array, ...]
    result: Tensor
    expected: Array


@dataclass
class Tally:
    cases: int = 0
    programs: int = 0
    by_op: dict[str, int] = field(default_factory=dict[str, int])
    wrong: list[str] = field(default_factory=list[str])


def random_tensor(
    rng: random.Random, name: str, dims: Sequence[str], axes: Sequence[str], *, pending: float
) -> Tensor:
    held: dict[str, list[str]] = {d: [] for d in dims}
    unreduced: list[str] = []
    for axis in rng.sample(list(axes), len(axes)):
        if rng.random() < pending:
            unreduced.append(axis)
        elif dims and rng.random() < 0.7:
            held[rng.choice(list(dims))].append(axis)
    return Tensor(name, tuple(dims), tuple(tuple(held[d]) for d in dims), tuple(sorted(unreduced)))


def random_contraction(rng: random.Random, axes: Sequence[str], max_dims: int) -> Contraction:
    """One to three dims a side: batch, free and summed, two or three operands."""
    while True:
        batch = ["B"][: rng.random() < 0.35]
        summed = ["J", "L"][: rng.choice((0, 1, 1, 1, 2))]
        left = ["I", "P"][: rng.choice((0, 1, 1, 2))]
        right = ["K", "Q"][: rng.choice((0, 1, 1, 2))]
        sides = [batch + left + summed, batch + summed + right]
        if rng.random() < 0.12 and left:
            sides.append([left[0], *right[:1]])
        for side in sides:
            rng.shuffle(side)
        result = batch + left + right
        rng.shuffle(result)
        if all(1 <= len(s) <= 3 for s in sides) and len(result) <= max_dims:
            break
    operands = tuple(
        random_tensor(rng, name, side, axes, pending=0.08)
        for name, side in zip("ACD", sides, strict=False)
    )
    pending = 0.1 if summed else 0.0
    return Contraction(operands, random_tensor(rng, "R", result, axes, pending=pending))


def draw(rng: random.Random, shape: Sequence[int]) -> Array:
    flat = [rng.randint(-2, 2) for _ in range(int(np.prod(shape)))]
    return np.array(flat, np.float32).reshape(tuple(shape))


def total(tensor: Tensor, array: Array) -> Array:
    """The true value of an input: its pending terms summed."""
    return array.sum(axis=tuple(range(len(tensor.unreduced)))) if tensor.unreduced else array


def einsum(contraction: Contraction, values: Sequence[Array]) -> Array:
    terms = ",".join("".join(t.dims) for t in contraction.operands)
    return np.einsum(f"{terms}->{''.join(contraction.result.dims)}", *values)


def check(program: Program, blocks: Array, mesh: Mesh) -> str:
    """Every device's block against the slice of the full result it should be."""
    names, sizes = tuple(mesh.axis_names), dict(mesh.shape)
    summed = tuple(names.index(a) for a in program.result.unreduced)
    if summed:
        blocks = np.broadcast_to(blocks.sum(axis=summed, keepdims=True), blocks.shape)
    for place in product(*(range(sizes[n]) for n in names)):
        position = dict(zip(names, place, strict=True))
        expected = program.expected
        for at, axes in enumerate(program.result.axes):
            for axis in axes:
                expected = np.split(expected, sizes[axis], axis=at)[position[axis]]
        if blocks[place].shape != expected.shape or not np.array_equal(blocks[place], expected):
            steps = " | ".join(map(str, program.steps))
            return f"{program.label}: device {position} is wrong: {steps}"
    return ""


def run(programs: list[Program], mesh: Mesh, tally: Tally) -> None:
    for start in range(0, len(programs), BATCH):
        batch = programs[start : start + BATCH]
        functions = [execute(p.steps, p.inputs, mesh) for p in batch]
        placed = [
            tuple(
                jax.device_put(a, NamedSharding(mesh, input_spec(t)))
                for t, a in zip(p.inputs, p.arrays, strict=True)
            )
            for p in batch
        ]
        together = jax.jit(_all(functions))
        for program, blocks in zip(batch, together(placed), strict=True):
            tally.programs += 1
            for step in program.steps:
                tally.by_op[step.op] = tally.by_op.get(step.op, 0) + 1
            problem = check(program, np.asarray(blocks), mesh)
            if problem:
                tally.wrong.append(problem)


def _all(
    functions: list[Callable[..., jax.Array]],
) -> Callable[[list[tuple[jax.Array, ...]]], list[jax.Array]]:
    return lambda placed: [f(*arrays) for f, arrays in zip(functions, placed, strict=True)]


def arrays_of(rng: random.Random, tensors: Sequence[Tensor], sizes: dict[str, int], side: int):
    return tuple(draw(rng, [sizes[a] for a in t.unreduced] + [side] * len(t.dims)) for t in tensors)


@dataclass
class Case:
    """One random contraction with its values, the cotangent, and later jax's own gradients."""

    contraction: Contraction
    arrays: tuple[Array, ...]
    values: list[Array]
    cotangent: Array
    gradients: list[Array] = field(default_factory=list[Array])


def random_case(rng: random.Random, sizes: dict[str, int]) -> Case:
    side = int(np.prod(list(sizes.values())))
    contraction = random_contraction(rng, list(sizes), 4 if side <= 12 else 3)
    arrays = arrays_of(rng, contraction.operands, sizes, side)
    values = [total(t, a) for t, a in zip(contraction.operands, arrays, strict=True)]
    shape = [side] * len(contraction.result.dims)
    return Case(contraction, arrays, values, draw(rng, shape))


def differentiate(cases: list[Case]) -> None:
    """jax.grad of every unsharded einsum, compiled together."""

    def gradients(given: list[tuple[list[jax.Array], jax.Array]]) -> list[list[jax.Array]]:
        return [
            jax.grad(_loss(case.contraction))(values, cotangent)
            for case, (values, cotangent) in zip(cases, given, strict=True)
        ]

    found = jax.jit(gradients)([(case.values, case.cotangent) for case in cases])
    for case, grads in zip(cases, found, strict=True):
        case.gradients = [np.asarray(g) for g in grads]


def _loss(contraction: Contraction) -> Callable[[list[jax.Array], jax.Array], jax.Array]:
    terms = ",".join("".join(t.dims) for t in contraction.operands)
    equation = f"{terms}->{''.join(contraction.result.dims)}"
    return lambda values, cotangent: (jax.numpy.einsum(equation, *values) * cotangent).sum()


def programs_of(case: Case, sizes: dict[str, int]) -> list[Program]:
    """All strategies forward, and the cheapest backward of each operand."""
    forward = case.contraction
    expected = einsum(forward, case.values)
    programs = [
        Program(str(forward), s.steps, forward.operands, case.arrays, forward.result, expected)
        for s in strategies(forward, sizes)
    ]
    for i, back in enumerate(backward(forward)):
        best = min(strategies(back, sizes), key=lambda s: sent(s.steps, sizes))
        given = (*case.arrays[:i], case.cotangent, *case.arrays[i + 1 :])
        label = f"gradient {back}"
        programs.append(
            Program(label, best.steps, back.operands, given, back.result, case.gradients[i])
        )
    return programs


def sent(steps: Sequence[Step], sizes: dict[str, int]) -> float:
    dims = {d: 1 for s in steps for t in s.inputs for d in t.dims}
    return sum(s.elements(dims, sizes) for s in steps if s.is_collective)


def reshard_program(rng: random.Random, sizes: dict[str, int]) -> Program:
    side = int(np.prod(list(sizes.values())))
    dims = "IJK"[: rng.randint(1, 3)]
    source = random_tensor(rng, "A", dims, list(sizes), pending=0.15)
    target = random_tensor(rng, "A", dims, list(sizes), pending=0.0)
    kept = [a for a in source.unreduced if a not in target.mesh_axes and rng.random() < 0.3]
    target = target.with_unreduced(tuple(kept))
    (array,) = arrays_of(rng, [source], sizes, side)
    steps = reshard(source, target, sizes)
    label = f"reshard {source} -> {target}"
    return Program(label, steps, (source,), (array,), target, total(source, array))


def main(seed: int, cases: int) -> Tally:
    rng = random.Random(seed)
    tally = Tally()
    weights = sum(weight for _, weight in MESHES)
    drawn = 0
    for sizes, weight in MESHES:
        devices = np.array(jax.devices()[: int(np.prod(list(sizes.values())))])
        mesh = Mesh(
            devices.reshape(tuple(sizes.values())),
            tuple(sizes),
            axis_types=(AxisType.Auto,) * len(sizes),
        )
        drawn += weight
        count = cases * drawn // weights - tally.cases
        drawn_cases = [random_case(rng, sizes) for _ in range(count)]
        differentiate(drawn_cases)
        programs = [program for case in drawn_cases for program in programs_of(case, sizes)]
        programs += [reshard_program(rng, sizes) for _ in range(count)]
        tally.cases += count
        run(programs, mesh, tally)
    return tally


if __name__ == "__main__":
    result = main(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(vars(result)))
