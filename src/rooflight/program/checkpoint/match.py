"""Which tensor of a checkpoint holds which of our weights, settled for the whole model at once.

In: the descriptions of a model's weights, a family, the names in a checkpoint. Out: one
`CheckpointWeight` for each weight. Nothing is read before all is known: what is missing, has
another shape, or would be left over without a reason is an error that names it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rooflight.errors import UsageError
from rooflight.program.checkpoint.forms import Form, parse_form
from rooflight.program.checkpoint.names import FRAME, LEFT_OUT, PREFIXES, Forms, Prefix, layer_forms
from rooflight.program.model.params import Specs, TensorSpec
from rooflight.program.pipeline.layers import PADDING, Staging

_MOST_NAMED = 8  # names in an error
_LAYER = re.compile(r".*\blayers\.\d+\.")
_PREDICTS = "eh_proj.weight"  # only a layer that predicts further tokens joins two streams


class Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class TensorPlace(NamedTuple):
    """One tensor of a file that holds a part of a weight: which layer of its run, which expert."""

    name: str
    row: int | None
    expert: int | None


@dataclass(frozen=True, slots=True)
class CheckpointWeight:
    """One of our weights and the tensors of a checkpoint that hold it."""

    spec: TensorSpec
    form: Form
    prefix: str  # with {layer} inside the layers
    sizes: Mapping[str, int]  # of all dims of its block
    layers: tuple[int, ...] = ()  # of the model, in the order of the leading dim; or `PADDING`

    @property
    def dims(self) -> tuple[str, ...]:
        """Our dims of one layer."""
        return _letters(self.spec)

    def name(self, row: int | None, expert: int | None) -> str:
        layer = None if row is None else self.layers[row]
        return self.prefix.format(layer=layer) + self.form.name.format(E=expert)

    def places(self) -> Iterator[TensorPlace]:
        rows = [i for i, n in enumerate(self.layers) if n != PADDING] if self.layers else (None,)
        experts = range(self.sizes["E"]) if "{E}" in self.form.name else (None,)
        for row in rows:
            for expert in experts:
                yield TensorPlace(self.name(row, expert), row, expert)


class Stores(NamedTuple):
    """A `Tree` of `CheckpointWeight`."""

    frame: dict[str, CheckpointWeight]
    layers: tuple[tuple[dict[str, CheckpointWeight], ...], ...]

    def every(self) -> Iterator[CheckpointWeight]:
        yield from self.frame.values()
        yield from (s for run in self.layers for block in run for s in block.values())


def published(family: str, specs: Specs) -> Stores:
    """Where the weights are in a checkpoint as the family publishes it."""
    return _stores(family, specs, names=None, prefix=PREFIXES[0])


def match(
    family: str, specs: Specs, entries: Mapping[str, Shaped], staging: Staging | None = None
) -> tuple[Stores, Mapping[str, str]]:
    """Where the weights are in this checkpoint; and what is left out of it, with the reason.

    `staging` says how the specs stack layers, if it is not by the model's own runs.
    """
    inside = (p for p in PREFIXES if f"{p.model}embed_tokens.weight" in entries)
    prefix = next(inside, PREFIXES[0])
    stores = _stores(family, specs, names=entries, prefix=prefix, staging=staging)
    wanted = {p.name: s for s in stores.every() for p in s.places()}
    _refuse(
        "does not have",
        [n for n in wanted if n not in entries],
        hint="give a checkpoint of the model that config.json describes, with all its files",
    )
    _refuse(
        "has with another shape than its config says",
        [n for n, s in wanted.items() if entries[n].shape != s.form.shape(s.sizes)],
        hint="give the config.json that was saved with these weights",
    )
    left_out = {n: _reason(n, specs, entries) for n in entries if n not in wanted}
    _refuse(
        "has, and no weight of the model is made of,",
        [n for n, reason in left_out.items() if not reason],
        hint="the config may leave out a part of the model, such as a bias; check it",
    )
    return stores, left_out


def _refuse(problem: str, names: Sequence[str], *, hint: str) -> None:
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        text = ", ".join(names[:_MOST_NAMED]) + more
        raise UsageError(f"the checkpoint {problem} {len(names)} tensors: {text}", hint=hint)


def _reason(name: str, specs: Specs, entries: Mapping[str, Shaped]) -> str:
    """Why a tensor is left out; empty if there is no known reason."""
    if name.endswith("lm_head.weight") and "head.W_head" not in specs.frame:
        return "the same as the embedding"
    layer = _LAYER.match(name)
    if layer and f"{layer[0]}{_PREDICTS}" in entries:
        return "an extra prediction layer"
    return next((why for pattern, why in LEFT_OUT.items() if re.fullmatch(pattern, name)), "")


def _times(run: Sequence[Mapping[str, TensorSpec]]) -> int:
    times = next(iter(run[0].values())).times
    assert times is not None
    return times


def _stores(
    family: str,
    specs: Specs,
    *,
    names: Mapping[str, Shaped] | None,
    prefix: Prefix,
    staging: Staging | None = None,
) -> Stores:
    forms = layer_forms(family)
    sizes = _sizes(specs.frame.values())
    frame = {
        name: _find(spec, _prefixed(FRAME, prefix), "", sizes, (), names)
        for name, spec in specs.frame.items()
    }
    layers: list[tuple[dict[str, CheckpointWeight], ...]] = []
    staged = [*staging.places()] if staging else []
    first = 0
    for number, run in enumerate(specs.layers):
        period, times = len(run), _times(run)
        blocks: list[dict[str, CheckpointWeight]] = []
        for place, block in enumerate(run):
            mine = tuple(first + place + period * i for i in range(times))
            if staged:
                mine = tuple(n for n, at in staged if (at.run, at.block) == (number, place))
            sizes, start = _sizes(block.values()), f"{prefix.model}layers.{{layer}}."
            blocks.append({n: _find(s, forms, start, sizes, mine, names) for n, s in block.items()})
        layers.append(tuple(blocks))
        first += period * times
    return Stores(frame, tuple(layers))


def _prefixed(forms: Mapping[str, Forms], prefix: Prefix) -> Mapping[str, Forms]:
    return {
        name: tuple(t.format(model=prefix.model, head=prefix.head) for t in texts)
        for name, texts in forms.items()
    }


def _letters(spec: TensorSpec) -> tuple[str, ...]:
    """The dims without the number that one has where two blocks of a model differ: F2 is F."""
    return tuple(d.rstrip("0123456789") for d in spec.tensor.dims)


def _sizes(specs: Iterable[TensorSpec]) -> dict[str, int]:
    return {
        d: n
        for s in specs
        for d, n in zip(_letters(s), s.shape[s.times is not None :], strict=True)
    }


def _find(
    spec: TensorSpec,
    forms: Mapping[str, Forms],
    prefix: str,
    sizes: Mapping[str, int],
    layers: tuple[int, ...],
    names: Mapping[str, Shaped] | None,
) -> CheckpointWeight:
    """The form that the checkpoint has; the published one if it has none or there is none yet."""
    ours = _letters(spec)
    parsed = (parse_form(text, ours) for text in forms.get(spec.name, ()))
    stored = [CheckpointWeight(spec, form, prefix, sizes, layers) for form in parsed if form]
    if not stored:
        raise UsageError(
            f"the family has no name for {spec.name}[{','.join(ours)}]",
            hint="give the family whose config.json the model was read from",
        )
    present = (s for s in stored if names is not None and next(s.places()).name in names)
    return next(present, stored[0])
