"""The book's notation as records and as text: `A[I_XY,J]{U_Z}`.

`A` is a tensor of dims `I` and `J`; `I` is split over mesh axes `X` (outer) then `Y`; over `Z`
each device holds one term of a sum that is still pending. Axis names longer than one
letter are written in braces: `W[D_{fsdp,tp},F]`. Text in, frozen records out, and back.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain

from rooflight.errors import ParseError, ShardingError

Axes = tuple[str, ...]

_COMPACT = re.compile(r"(?:[A-Z][0-9]*)+")
_ONE_LETTER = re.compile(r"[A-Z][0-9]*")
_AXES = r"(?:[A-Z][A-Z0-9]*|\{[^{}]*\})"
_DIM = re.compile(rf"\s*([A-Za-z][A-Za-z0-9]*)(?:_({_AXES}))?\s*")
_TENSOR = re.compile(
    rf"\s*([A-Za-z][A-Za-z0-9_']*)?\s*\[((?:[^\[\]]|\n)*)\]\s*(?:\{{\s*U_({_AXES})\s*\}})?\s*"
)
_TIMES = re.compile(r"(?:\*|\u00b7)(?:_([A-Za-z0-9]+|\{[^{}]*\}))?(?=\s)|(?:\*|\u00b7)")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_HINT = "write it like A[I_X,J] or W[D_{fsdp,tp},F]{U_Z}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array and how it is laid out over mesh axes.

    >>> a = parse_tensor("A[I_XY,J]{U_Z}")
    >>> a.axes_of("I"), a.unreduced, str(a)
    (('X', 'Y'), ('Z',), 'A[I_XY,J]{U_Z}')
    """

    name: str
    dims: tuple[str, ...]
    axes: tuple[Axes, ...]
    unreduced: Axes = ()

    def __post_init__(self) -> None:
        _check(self)

    def __str__(self) -> str:
        dims = ",".join(
            f"{d}_{format_axes(a)}" if a else d for d, a in zip(self.dims, self.axes, strict=True)
        )
        tail = f"{{U_{format_axes(self.unreduced)}}}" if self.unreduced else ""
        return f"{self.name}[{dims}]{tail}"

    def axes_of(self, dim: str) -> Axes:
        """Mesh axes of a dim, outermost first; empty if the tensor does not have the dim."""
        return self.axes[self.dims.index(dim)] if dim in self.dims else ()

    def dim_of(self, axis: str) -> str | None:
        """The dim that an axis splits, or None."""
        return next((d for d, a in zip(self.dims, self.axes, strict=True) if axis in a), None)

    @property
    def sharded_over(self) -> Axes:
        """Every axis that splits a dim, in order of appearance."""
        return tuple(chain.from_iterable(self.axes))

    @property
    def mesh_axes(self) -> Axes:
        """Every axis the tensor mentions."""
        return self.sharded_over + self.unreduced

    def with_axes(self, dim: str, axes: Axes) -> "Tensor":
        """The same tensor with other axes on one dim."""
        at = self.dims.index(dim)
        return replace(self, axes=(*self.axes[:at], axes, *self.axes[at + 1 :]))

    def with_unreduced(self, axes: Axes) -> "Tensor":
        """The same tensor with other unreduced axes."""
        return replace(self, unreduced=tuple(sorted(axes)))

    def replicated(self) -> "Tensor":
        """The same tensor, whole on every device."""
        return Tensor(self.name, self.dims, ((),) * len(self.dims))


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product of tensors summed over every dim that the result lacks.

    >>> c = parse_contraction("A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]")
    >>> c.contracted, c.dims, str(c)
    (('J',), ('I', 'J', 'K'), 'A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]')
    """

    operands: tuple[Tensor, ...]
    result: Tensor

    def __post_init__(self) -> None:
        _check_contraction(self)

    def __str__(self) -> str:
        return f"{' * '.join(map(str, self.operands))} -> {self.result}"

    @property
    def dims(self) -> tuple[str, ...]:
        """Every dim, in order of appearance."""
        return tuple(dict.fromkeys(d for t in self.operands for d in t.dims))

    @property
    def contracted(self) -> tuple[str, ...]:
        """The dims that are summed over."""
        return tuple(d for d in self.dims if d not in self.result.dims)

    @property
    def mesh_axes(self) -> Axes:
        """Every mesh axis that any tensor mentions, in order of appearance."""
        tensors = (*self.operands, self.result)
        return tuple(dict.fromkeys(axis for t in tensors for axis in t.mesh_axes))


def format_axes(axes: Axes) -> str:
    """`XY` when every name is one capital letter, else `{fsdp,tp}`."""
    if all(_ONE_LETTER.fullmatch(a) for a in axes):
        return "".join(axes)
    return "{" + ",".join(axes) + "}"


def parse_axes(text: str) -> Axes:
    """Reads `XY` or `{fsdp,tp}`.

    >>> parse_axes("XY2"), parse_axes("{fsdp,tp}")
    (('X', 'Y2'), ('fsdp', 'tp'))
    """
    if text.startswith("{") and text.endswith("}"):
        names = tuple(n.strip() for n in text[1:-1].split(","))
    elif _COMPACT.fullmatch(text):
        names = tuple(_ONE_LETTER.findall(text))
    else:
        names = (text,)
    if not all(_NAME.fullmatch(n) for n in names):
        raise ParseError(f"{text!r} does not name mesh axes", hint="write XY or {fsdp,tp}")
    return names


def parse_tensor(text: str) -> Tensor:
    """Reads one tensor.

    >>> str(parse_tensor(" W[ D_{fsdp,tp} , F ] "))
    'W[D_{fsdp,tp},F]'
    """
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ParseError(f"{text.strip()!r} is not a tensor in the notation", hint=_HINT)
    dims: list[str] = []
    axes: list[Axes] = []
    for part in _split_dims(match[2]):
        dim = _DIM.fullmatch(part)
        if dim is None:
            raise ParseError(f"{part.strip()!r} in {text.strip()!r} is not a dim", hint=_HINT)
        dims.append(dim[1])
        axes.append(parse_axes(dim[2]) if dim[2] else ())
    unreduced = tuple(sorted(parse_axes(match[3]))) if match[3] else ()
    return Tensor(match[1] or "A", tuple(dims), tuple(axes), unreduced)


def _split_dims(text: str) -> list[str]:
    """Splits at commas outside braces; `[]` is a scalar."""
    if not text.strip():
        return []
    return re.split(r",(?![^{}]*\})", text)


def parse_contraction(text: str) -> Contraction:
    """Reads `A[I,J_X] * B[J_X,K] -> C[I,K]`; `*_J` may name the contracted dims.

    >>> parse_contraction("A[I,J_X] *_J B[J_X,K] -> C[I,K]{U_X}").result.unreduced
    ('X',)
    """
    sides = text.split("->")
    if len(sides) != 2:
        raise ParseError(
            f"{text.strip()!r} needs one `->`", hint="write A[I_X,J] * B[J,K_Y] -> C[I_X,K_Y]"
        )
    named = {d for m in _TIMES.finditer(sides[0]) if m[1] for d in _named_dims(m[1])}
    operands = tuple(parse_tensor(_TIMES.sub("", p)) for p in _split_product(sides[0]))
    contraction = Contraction(operands, parse_tensor(sides[1]))
    wrong = named - set(contraction.contracted)
    if wrong:
        raise ShardingError(
            f"`*_{min(wrong)}` says {min(wrong)} is summed over, but the result keeps it"
            if min(wrong) in contraction.dims
            else f"`*_{min(wrong)}` names a dim that no operand has",
            hint="write a plain `*`: the summed dims are those the result lacks",
        )
    return contraction


def _named_dims(text: str) -> list[str]:
    if text.startswith("{"):
        return [d.strip() for d in text[1:-1].split(",")]
    return [text]


def _split_product(text: str) -> list[str]:
    """The factors of a product, split at `*` outside brackets."""
    parts = [p for p in _TIMES.split(text)[:: _TIMES.groups + 1]]
    return parts


def _check(tensor: Tensor) -> None:
    """The forbidden shardings: a dim named twice, an axis used twice."""
    dims, axes = tensor.dims, tensor.mesh_axes
    if len(set(dims)) == len(dims) and len(set(axes)) == len(axes):
        return  # tensors are made by the thousand, and almost all are good
    for dim, count in Counter(tensor.dims).items():
        if count > 1:
            raise ShardingError(
                f"{tensor.name} names dim {dim} {count} times",
                hint="give each dim its own letter, such as A[I,J]",
            )
    for axis, count in Counter(tensor.mesh_axes).items():
        if count > 1:
            raise ShardingError(_used_twice(tensor, axis), hint="use each mesh axis once a tensor")


def _used_twice(tensor: Tensor, axis: str) -> str:
    dims = [d for d, a in zip(tensor.dims, tensor.axes, strict=True) if axis in a]
    if len(dims) > 1:
        why = "a device would hold only the diagonal blocks"
        return f"{tensor.name} splits both {' and '.join(dims)} over mesh axis {axis}: {why}"
    if dims and axis in tensor.unreduced:
        why = "the devices of an axis hold either different blocks or terms of one sum"
        return f"{tensor.name} both splits {dims[0]} over {axis} and is unreduced over it: {why}"
    return f"{tensor.name} names mesh axis {axis} twice on one dim"


def _check_contraction(contraction: Contraction) -> None:
    seen = Counter(d for t in contraction.operands for d in t.dims)
    for dim in contraction.result.dims:
        if dim not in seen:
            raise ShardingError(
                f"the result has dim {dim}, which no operand has",
                hint=f"remove {dim} from {contraction.result.name}",
            )
    for dim, count in seen.items():
        if count == 1 and dim not in contraction.result.dims:
            raise ShardingError(
                f"dim {dim} is summed inside one operand, which is a reduction, not a contraction",
                hint=f"keep {dim} in the result, or give a second operand the dim {dim}",
            )
