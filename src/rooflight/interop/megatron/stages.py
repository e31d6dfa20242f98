"""Which layers a pipeline stage of Megatron-LM holds, read and written.

In: flags. Out: the layers of every chunk in order, chunk c on stage c mod S. Rooflight cuts layers
into runs that differ by at most one, the larger first; a cut that Megatron-LM would not make of its
own is written as `--pipeline-model-parallel-layout`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rooflight.errors import ParseError, UsageError
from rooflight.interop.framework import Loss, Settings
from rooflight.interop.megatron.read_model import count
from rooflight.models.layout.staging import cut_layers

_LAYOUT = re.compile(r"[EtmL|()*0-9,\s]{1,4000}")
_UNROLLED = (re.compile(r"\(([^()]+)\)\*(\d{1,6})"), re.compile(r"(.)\*(\d{1,6})"))
_MOST = 100_000  # characters of a layout
_ENDS = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
_FIRST, _LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
GROUP = "microbatch-group-size-per-virtual-pipeline-stage"
_EACH = "num-layers-per-virtual-pipeline-stage"
_VIRTUAL = "num-virtual-stages-per-pipeline-rank"
_WRITTEN = "pipeline-model-parallel-layout"


@dataclass(frozen=True, slots=True)
class Chunks:
    """Runs of layers, and how many of them a stage has."""

    layers: tuple[int, ...]
    virtual: int


def stage_settings(num_layers: int, stages: int, virtual: int) -> Settings:
    """The flags of a pipeline whose stages hold the layers that a plan gives them."""
    if stages == 1:
        return {}
    cut = [len(chunk) for chunk in cut_layers(num_layers, stages * virtual)]
    if len(set(cut)) > 1:
        return {_WRITTEN: _layout(cut)}
    return {_EACH: cut[0]} if virtual > 1 else {}


def _layout(cut: Sequence[int]) -> str:
    """
    >>> _layout((3, 3, 3, 2))
    'E(t*3|)*3t*2L'
    """
    *runs, (last, times) = [(n, len(list(group))) for n, group in groupby(cut)]
    runs += [(last, times - 1)] if times > 1 else []
    return f"E{''.join(f'(t*{n}|)*{count}' for n, count in runs)}t*{last}L"


def read_chunks(values: Mapping[str, object], num_layers: int, stages: int) -> Chunks:
    """The layers of every chunk, as Megatron-LM builds them."""
    if stages == 1:
        return Chunks((num_layers,), 1)
    if values[_WRITTEN]:
        return _written(str(values[_WRITTEN]), num_layers, stages)
    ends = [values[key] is True for key in _ENDS]
    total = num_layers + sum(ends)
    if values[_FIRST] != "" or values[_LAST] != "":
        each = _uneven(values, num_layers, stages)
    else:
        each = [_divided(total, stages, "stages")] * stages
    virtual = _virtual(values, each)
    runs = [_divided(n, virtual, "chunks of a stage") for n in each] * virtual
    runs[0] -= ends[0]
    runs[-1] -= ends[1]
    return Chunks(tuple(runs), virtual)


def _uneven(values: Mapping[str, object], num_layers: int, stages: int) -> list[int]:
    first, last = (count(values, key) if values[key] != "" else None for key in (_FIRST, _LAST))
    given = [n for n in (first, last) if n is not None]
    between, left = stages - len(given), num_layers - sum(given)
    each = _divided(left, between, "stages between") if between else 0
    sizes = [each] * stages
    sizes[0] = first if first is not None else each
    sizes[-1] = last if last is not None else each
    if sum(sizes) != num_layers:
        raise UsageError(
            f"the stages hold {sum(sizes)} layers, the model has {num_layers}",
            hint=f"change --{_FIRST} or --{_LAST}",
        )
    return sizes


def _virtual(values: Mapping[str, object], each: Sequence[int]) -> int:
    if values[_VIRTUAL] != "":
        return count(values, _VIRTUAL)
    if values[_EACH] == "":
        return 1
    return _divided(each[0], count(values, _EACH), "layers of a chunk")


def _divided(number: int, by: int, what: str) -> int:
    whole, left = divmod(number, by)
    if left or whole < 1:
        raise UsageError(
            f"{number} layers must be a multiple of the {by} {what}",
            hint=f"Megatron-LM refuses it too; it takes any cut as --{_WRITTEN}",
        )
    return whole


def _written(text: str, num_layers: int, stages: int) -> Chunks:
    """A layout such as `Et*3|(tt|)*29,m|L`."""
    if _LAYOUT.fullmatch(text) is None:
        raise ParseError(
            f"{text[:80]!r} must be a pipeline layout of E, t, m, L and |",
            hint=f"write --{_WRITTEN} 'Et*4|t*4|t*4L'",
        )
    for pattern in _UNROLLED:
        text = _unroll(pattern, re.sub(r"[,\s]", "", text))
    layers = tuple(stage.count("t") for stage in text.split("|"))
    virtual, left = divmod(len(layers), stages)
    if left or sum(layers) != num_layers:
        raise UsageError(
            f"a layout of {len(layers)} stages with {sum(layers)} layers must be one of"
            f" {num_layers} layers on a multiple of {stages} stages",
            hint=f"change --{_WRITTEN}",
        )
    return Chunks(layers, virtual)


def _unroll(pattern: re.Pattern[str], text: str) -> str:
    size = 0

    def repeated(match: re.Match[str]) -> str:
        nonlocal size
        size += len(match[1]) * int(match[2])
        if size > _MOST:
            raise ParseError(f"a layout of more than {_MOST} stages and layers", hint="shorten it")
        return match[1] * int(match[2])

    return pattern.sub(repeated, text)


def uneven_loss(chunks: Chunks) -> list[Loss]:
    """Where a plan would cut the layers elsewhere."""
    ours = tuple(len(cut) for cut in cut_layers(sum(chunks.layers), len(chunks.layers)))
    if ours == chunks.layers:
        return []
    because = f"taken for {_runs(ours)}"
    return [Loss(f"stages of {_runs(chunks.layers)} layers", because)]


def _runs(sizes: Sequence[int]) -> str:
    """
    >>> _runs((7, 8, 8, 7))
    '7, 2 x 8, 7'
    """
    runs = ((n, len(list(group))) for n, group in groupby(sizes))
    return ", ".join(f"{times} x {n}" if times > 1 else str(n) for n, times in runs)
