"""FLOPs and bytes of a user's JAX function, counted in its jaxpr; nothing is compiled or run.

Runs in a child (`child.measure`). A loop of known length counts as often as it goes round; one
whose length only shows when it runs counts once, and is said to.

    least bytes   arguments and results, each once: all that lies between stays on the chip
    most bytes    operands and results of every operation: nothing stays on the chip
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any  # jaxprs

import jax

_FREE = {
    "reshape",
    "squeeze",
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "sharding_constraint",
}


@dataclass(slots=True)
class OpCounts:
    """What a function does once."""

    matmul_flops: int = 0
    other_flops: int = 0  # one for each element that an operation makes
    most_bytes: int = 0
    loops_of_unknown_length: int = 0

    def add(self, other: "OpCounts", times: int = 1) -> None:
        self.matmul_flops += times * other.matmul_flops
        self.other_flops += times * other.other_flops
        self.most_bytes += times * other.most_bytes
        self.loops_of_unknown_length += other.loops_of_unknown_length


def function(*, name: str, folder: str) -> dict[str, Any]:
    """Counts `package.module:build`, which returns a function and its (abstract) arguments."""
    sys.path.insert(0, folder)
    module, _, attribute = name.partition(":")
    build: Callable[[], tuple[Any, tuple[Any, ...]]] = getattr(import_module(module), attribute)
    traced, arguments = build()
    jaxpr = jax.make_jaxpr(traced)(*arguments)
    ends = [*jaxpr.in_avals, *jaxpr.out_avals]
    counts = count(jaxpr.jaxpr)
    matmuls = {n: v for n, v in sorted(_matmuls(jaxpr.jaxpr).items(), key=lambda kv: -kv[1])}
    return asdict(counts) | {"least_bytes": sum(map(_nbytes, ends)), "matmuls": matmuls}


def count(jaxpr: Any) -> OpCounts:
    """Adds up the equations of a jaxpr, those of inner ones as often as they run."""
    total = OpCounts()
    for equation in jaxpr.eqns:
        inner = list(_inner(equation))
        if equation.primitive.name == "cond":
            every = [count(branch) for branch, _ in inner]
            total.add(max(every, key=lambda c: c.matmul_flops + c.other_flops))
        elif inner:
            for each, times in inner:
                total.add(count(each), times)
            total.loops_of_unknown_length += equation.primitive.name == "while"
        else:
            total.add(_one(equation))
    return total


def _inner(equation: Any) -> Iterator[tuple[Any, int]]:
    """The jaxprs within an equation, and how often it runs each."""
    times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
    for value in equation.params.values():
        for found in value if isinstance(value, (tuple, list)) else (value,):
            found = getattr(found, "jaxpr", found)
            if hasattr(found, "eqns"):
                yield found, times


def _one(equation: Any) -> OpCounts:
    name = equation.primitive.name
    made = sum(math.prod(v.aval.shape) for v in equation.outvars)
    if name == "dot_general":
        return OpCounts(_dot_flops(equation), 0, _moved(equation))
    if name in _FREE:
        return OpCounts()
    return OpCounts(0, made, _moved(equation))


def _dot_flops(equation: Any) -> int:
    """2 m n k: twice the elements of the result times the length of each sum."""
    (summed, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    made = math.prod(equation.outvars[0].aval.shape)
    return 2 * made * math.prod(shape[i] for i in summed)


def _moved(equation: Any) -> int:
    ends = [*equation.invars, *equation.outvars]
    return sum(_nbytes(v.aval) for v in ends)


def _nbytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


def _matmuls(jaxpr: Any, times: int = 1) -> Mapping[str, int]:
    """FLOPs by the shapes of a matmul."""
    found: dict[str, int] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            shapes = ["x".join(map(str, v.aval.shape)) or "1" for v in equation.invars]
            name = f"{shapes[0]} * {shapes[1]}"
            found[name] = found.get(name, 0) + times * _dot_flops(equation)
        for each, inner in _inner(equation):
            for name, flops in _matmuls(each, times * inner).items():
                found[name] = found.get(name, 0) + flops
    return found
