"""`Layout`: which mesh axes split which dims of which kind of tensor. Data, not code paths.

Four rules say it all: one for weights, one for the residual stream (activations with dim D), one
for the activations inside a block, one for the scores (activations with dims T and S). Data, FSDP,
tensor, weight-stationary, sequence, context and expert parallelism are entries of these rules;
combining schemes merges their entries. A pipeline splits no tensor: its axes hold the stages.

How a scheme communicates, where there is a choice, follows a colon: `cp=Y:ring` passes keys and
values around the axis where `cp=Y` gathers them. A mode moves no tensor's home.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rooflight.algebra.notation import Axes, Tensor, parse_axes
from rooflight.errors import ParseError, ShardingError, UnknownNameError

Rule = Mapping[str, Axes]  # dim -> axes, outer first

_INNER = ("F", "Fe", "Fs", "K", "N", "V")  # what tensor parallelism splits
_QUERIES = ("F", "Fe", "Fs", "G", "N", "V")  # and where keys and values stay whole
_LOSABLE = ("D", "Q", "R", "L")  # what FSDP splits, the first that a weight has
_COMMA = re.compile(r",(?![^{}]*\})")  # not those inside {data,model}


@dataclass(frozen=True, slots=True)
class Layout:
    """The rules, and the schemes they came from.

    >>> from rooflight.algebra.notation import parse_tensor
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
    scores: Rule
    stages: Axes = ()
    cache: Rule | None = None  # keys and values of earlier steps; None: as this step writes them
    combines: bool = False  # a chip adds up what its experts gave each token before it is sent
    modes: Mapping[str, str] = field(default_factory=dict[str, str])  # by scheme: how it talks

    @property
    def split_over(self) -> Axes:
        """Every mesh axis that splits a tensor, by name; those of pipeline stages do not."""
        rules = (self.weight, self.stream, self.inner)
        return tuple(sorted({axis for rule in rules for axes in rule.values() for axis in axes}))

    def of_weight(self, tensor: Tensor) -> Tensor:
        """A weight; FSDP axes go to its first dim that may lose them, else they replicate it."""
        rule = {d: a for d, a in self.weight.items() if d not in _LOSABLE}
        home = next((d for d in _LOSABLE if d in tensor.dims), None)
        if home is not None:
            rule[home] = self.weight.get("D", ())
        return _split(tensor, rule)

    def of_activation(self, tensor: Tensor) -> Tensor:
        """An activation: the stream's rule if it has dim D, the scores' if it pairs T and S."""
        if "D" in tensor.dims:
            return _split(tensor, self.stream)
        return _split(tensor, self.scores if {"T", "S"} <= set(tensor.dims) else self.inner)

    def of_cache(self, tensor: Tensor) -> Tensor | None:
        """Keys or values as earlier steps left them; None where this step writes them itself."""
        kept = self.cache is not None and "S" in tensor.dims and "T" not in tensor.dims
        return _split(tensor, self.cache or {}) if kept else None


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
    scores: tuple[str, ...] | None = None  # as inner, unless the scheme says otherwise
    modes: tuple[str, ...] = ()  # beside the plain one, which has no name


_CP = "context: positions of a sequence; keys are gathered, or go around: cp=8:ring"
SCHEMES = {
    "dp": _Scheme((), ("B", "C"), ("B", "C"), "data: sequences"),
    "fsdp": _Scheme(("D",), ("B", "C"), ("B", "C"), "data, and weights along D"),
    "tp": _Scheme(_INNER, ("D",), _INNER, "tensor: heads and widths; the stream along D"),
    "sp": _Scheme(_INNER, ("T",), _INNER, "tensor; the stream along the sequence"),
    "qtp": _Scheme(_QUERIES, ("D",), _QUERIES, "tp by the queries of a kv head, k and v whole"),
    "mp": _Scheme(_INNER, (), _INNER, "tensor; the stream is replicated"),
    "ws": _Scheme(("D",), ("D",), (), "weight-stationary: weights and the stream along D"),
    "cp": _Scheme((), ("T", "C"), ("T", "C"), _CP, None, ("ring",)),
    "ulysses": _Scheme((), ("T", "C"), ("T", "C"), "context; the scores by heads", ("K", "N")),
    "ep": _Scheme(("E",), ("E",), ("E",), "experts"),
    "pp": _Scheme((), (), (), "pipeline: layers, in stages"),
}


def scheme_axes(layout: Layout) -> dict[str, tuple[str, ...]]:
    """The mesh axes of each scheme of a layout.

    >>> scheme_axes(parse_layout("fsdp=XZ,cp=Y:ring"))
    {'fsdp': ('X', 'Z'), 'cp': ('Y',)}
    """
    parts = [part.partition("=") for part in layout.text.split(",")]
    return {name: tuple(axes.partition(":")[0]) for name, _, axes in parts}


def with_mode(layout: Layout, scheme: str, mode: str) -> Layout:
    """The same layout, one of its schemes communicating so.

    >>> with_mode(parse_layout("fsdp=X,cp=Y"), "cp", "ring").text
    'fsdp=X,cp=Y:ring'
    """
    parts = (part.partition(":")[0] for part in layout.text.split(","))
    modes = {**layout.modes, scheme: mode}
    text = (f"{p}:{modes[n]}" if (n := p.partition("=")[0]) in modes else p for p in parts)
    return replace(layout, text=",".join(text), modes=modes)


def parse_layout(text: str) -> Layout:
    """Reads schemes and their axes: `fsdp=X,tp=Y`, `dp=Z,ep=X`; `fsdp=XZ` uses two axes.

    An axis may serve several schemes where their dims differ: `fsdp=X,ep=X` splits tokens and
    experts over the same devices. Only an axis of pipeline stages serves nothing else.
    """
    weight: dict[str, Axes] = {}
    stream: dict[str, Axes] = {}
    inner: dict[str, Axes] = {}
    scores: dict[str, Axes] = {}
    stages: Axes = ()
    modes: dict[str, str] = {}
    for name, axes, mode in _schemes(text):
        scheme = SCHEMES[name]
        modes |= {name: mode} if mode else {}
        _add(weight, scheme.weight, axes)
        _add(stream, scheme.stream, axes)
        _add(inner, scheme.inner, axes)
        _add(scores, scheme.inner if scheme.scores is None else scheme.scores, axes)
        stages += axes if name == "pp" else ()
    layout = Layout(
        text.replace(" ", ""),
        _shared_first(weight, inner | stream),
        _shared_first(stream, weight),
        _shared_first(inner, weight),
        _shared_first(scores, weight),
        stages,
        modes=modes,
    )
    _check_rules(layout)
    _check_stages(layout)
    return layout


def _add(rule: dict[str, Axes], dims: tuple[str, ...], axes: Axes) -> None:
    for dim in dims:
        rule[dim] = (*rule.get(dim, ()), *axes)


def _schemes(text: str) -> Iterator[tuple[str, Axes, str]]:
    """Every scheme with its axes and its mode, "" where it has none."""
    for part in _COMMA.split(text):
        name, equals, names = part.partition("=")
        name = name.strip()
        names, mode = split_mode(name, names)
        if not equals or not names.strip():
            raise ParseError(f"{part!r} is not SCHEME=AXES", hint="write fsdp=X,tp=Y")
        if name not in SCHEMES:
            raise UnknownNameError("scheme", name, SCHEMES)
        yield name, parse_axes(names.strip()), mode


def split_mode(scheme: str, value: str) -> tuple[str, str]:
    """What follows a scheme's equals sign, and how the scheme communicates.

    >>> split_mode("cp", "8:ring"), split_mode("dp", "4")
    (('8', 'ring'), ('4', ''))
    """
    value, colon, mode = value.partition(":")
    mode = mode.strip()
    known = SCHEMES[scheme].modes if scheme in SCHEMES else ()
    if colon and mode not in known:
        if known:
            raise UnknownNameError(f"mode of {scheme}", mode, known)
        having = ", ".join(f"{n}:{m}" for n, s in SCHEMES.items() for m in s.modes)
        raise ParseError(f"{scheme} has no mode {mode!r}", hint=f"those with modes are {having}")
    return value, mode


def _shared_first(rule: Rule, other: Rule) -> Rule:
    """Axes that weights and activations share on a dim go outside those that one must lose.

    Only the innermost axes of a dim can be gathered: x[D_XY] meets W[D_X,F_Y] after one gather
    over Y, while x[D_YX] would have to be shuffled first.
    """
    return {
        dim: tuple(sorted(axes, key=lambda axis, dim=dim: axis not in other.get(dim, ())))
        for dim, axes in rule.items()
    }


def _check_rules(layout: Layout) -> None:
    """An axis splits a dim once, and one dim of the stream."""
    stream = tuple(a for d in ("B", "T", "D") for a in layout.stream.get(d, ()))
    dims = {
        f"dim {d}": axes for d, axes in {**layout.weight, **layout.inner, **layout.scores}.items()
    }
    for what, axes in ({"the stream x[B,T,D]": stream} | dims).items():
        twice = next((a for a in axes if axes.count(a) > 1), None)
        if twice:
            raise ShardingError(
                f"layout {layout.text} splits {what} twice over axis {twice}",
                hint="give data, sequence and tensor schemes different axes",
            )


def _check_stages(layout: Layout) -> None:
    """Chips of two stages hold different layers: they can share no tensor."""
    for axis in layout.stages:
        if axis in layout.split_over or layout.stages.count(axis) > 1:
            raise ShardingError(
                f"layout {layout.text} uses axis {axis} for pipeline stages and once more",
                hint="give the stages an axis of their own, as in fsdp=X,pp=P",
            )
