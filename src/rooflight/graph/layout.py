"""`Layout`: which mesh axes split which dims of which kind of tensor. Data, not code paths.

Three rules say it all: one for weights, one for the residual stream (activations with dim D), one
for the activations inside a block. Data, FSDP, tensor, sequence, context and expert parallelism
are entries of these rules; combining schemes merges their entries.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.algebra import Axes, Tensor, parse_axes
from rooflight.errors import ParseError, ShardingError, UnknownNameError

Rule = Mapping[str, Axes]  # dim -> axes, outer first

_INNER = ("F", "Fe", "Fs", "K", "N", "V")  # what tensor parallelism splits
_LOSABLE = ("D", "Q", "R", "L")  # what FSDP splits, the first that a weight has


@dataclass(frozen=True, slots=True)
class Layout:
    """The rules, and the schemes they came from.

    >>> from rooflight.algebra import parse_tensor
    >>> layout = parse_layout("fsdp=X,tp=Y")
    >>> str(layout.of_weight(parse_tensor("W_in[D,F]")))
    'W_in[D_X,F_Y]'
    >>> str(layout.of_activation(parse_tensor("x[B,T,D]")))
    'x[B_X,T,D_Y]'
    """

    text: str
    weight: Rule
    stream: Rule
    inner: Rule

    def of_weight(self, tensor: Tensor) -> Tensor:
        """A weight; FSDP axes go to its first dim that may lose them, else they replicate it."""
        rule = {d: a for d, a in self.weight.items() if d not in _LOSABLE}
        home = next((d for d in _LOSABLE if d in tensor.dims), None)
        if home is not None:
            rule[home] = self.weight.get("D", ())
        return _split(tensor, rule)

    def of_activation(self, tensor: Tensor) -> Tensor:
        """An activation: the stream's rule if it has dim D, else the rule inside a block."""
        return _split(tensor, self.stream if "D" in tensor.dims else self.inner)


def _split(tensor: Tensor, rule: Rule) -> Tensor:
    """Splits each dim by the rule; an axis that two dims want goes to the expert dim.

    What belongs to experts has E as its first dim. The router scores them all, so its E stays.
    """
    used: set[str] = set()
    axes: dict[str, Axes] = {}
    for dim in sorted(tensor.dims, key=lambda d: _base(d) != "E"):
        scores = _base(dim) == "E" and dim != tensor.dims[0]
        wanted = () if scores else rule.get(_base(dim), ())
        axes[dim] = tuple(a for a in wanted if a not in used)
        used |= set(axes[dim])
    return Tensor(tensor.name, tensor.dims, tuple(axes[d] for d in tensor.dims))


def _base(dim: str) -> str:
    """F2 is an F of another size."""
    return dim.rstrip("0123456789")


@dataclass(frozen=True, slots=True)
class _Scheme:
    """What one word of a layout adds to the rules."""

    weight: tuple[str, ...]
    stream: tuple[str, ...]
    inner: tuple[str, ...]
    help: str


SCHEMES = {
    "dp": _Scheme((), ("B", "C"), ("B", "C"), "data: sequences"),
    "fsdp": _Scheme(("D",), ("B", "C"), ("B", "C"), "data, and weights along D"),
    "tp": _Scheme(_INNER, ("D",), _INNER, "tensor: heads and widths; the stream along D"),
    "sp": _Scheme(_INNER, ("T",), _INNER, "tensor; the stream along the sequence"),
    "mp": _Scheme(_INNER, (), _INNER, "tensor; the stream is replicated"),
    "cp": _Scheme((), ("T", "C"), ("T", "C"), "context: positions of a sequence"),
    "ep": _Scheme(("E",), ("E",), ("E",), "experts"),
}


def parse_layout(text: str) -> Layout:
    """Reads schemes and their axes: `fsdp=X,tp=Y`, `dp=Z,ep=X`; `fsdp=XZ` uses two axes.

    An axis may serve several schemes where their dims differ: `fsdp=X,ep=X` splits tokens and
    experts over the same devices.
    """
    rules: dict[str, dict[str, Axes]] = {"weight": {}, "stream": {}, "inner": {}}
    for part in text.split(","):
        name, equals, names = part.partition("=")
        name = name.strip()
        if not equals or not names.strip():
            raise ParseError(f"{part!r} is not SCHEME=AXES", hint="write fsdp=X,tp=Y")
        if name not in SCHEMES:
            raise UnknownNameError("scheme", name, SCHEMES)
        scheme, axes = SCHEMES[name], parse_axes(names.strip())
        for rule, dims in (
            (rules["weight"], scheme.weight),
            (rules["stream"], scheme.stream),
            (rules["inner"], scheme.inner),
        ):
            for dim in dims:
                rule[dim] = (*rule.get(dim, ()), *axes)
    _check_stream(text, rules["stream"])
    return Layout(text.replace(" ", ""), rules["weight"], rules["stream"], rules["inner"])


def _check_stream(text: str, stream: Mapping[str, Axes]) -> None:
    used = [a for d in ("B", "T", "D") for a in stream.get(d, ())]
    for axis in used:
        if used.count(axis) > 1:
            raise ShardingError(
                f"layout {text} splits the stream x[B,T,D] twice over axis {axis}",
                hint="give data, sequence and tensor schemes different axes",
            )
