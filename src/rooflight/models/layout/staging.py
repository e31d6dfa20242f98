"""Layers as the stages of a pipeline in lock step: which each has, and what all of them run.

In: the kinds of all layers in order, a number of stages. Out: runs of layers that differ by at most
one, the larger first, since the last stage has the head; and the shortest order of kinds that has
the layers of each stage in it. All devices run one program, so every stage runs that order,
and a place in it for which a stage has no layer is padding.

    a a b | a a b | a a       every stage runs a a b, the last one with its b left out
    d d d m | m m m m         every stage runs d d d m m m m: a first stage that is unlike is dear
"""

from functools import lru_cache
from itertools import pairwise

Kinds = tuple[int, ...]  # of layers one after the other


def cut_layers(num_layers: int, stages: int) -> list[range]:
    """The layers of every stage.

    >>> cut_layers(5, 2)
    [range(0, 3), range(3, 5)]
    """
    size, larger = divmod(num_layers, stages)
    starts = [s * size + min(s, larger) for s in range(stages + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


@lru_cache(maxsize=1024)
def stage_kinds(kinds: Kinds, stages: int) -> Kinds:
    """What every stage runs, padding included.

    >>> stage_kinds((0, 0, 0, 1, 1, 1, 1), 2)
    (0, 0, 0, 1, 1, 1)
    """
    order: Kinds = ()
    chunks = cut_layers(len(kinds), stages)
    for own in dict.fromkeys(kinds[chunk.start : chunk.stop] for chunk in chunks):
        order = _shortest_with_both(order, own)
    return order


def _shortest_with_both(a: Kinds, b: Kinds) -> Kinds:
    """The shortest sequence of which both are a part, in their order.

    >>> _shortest_with_both((0, 1, 0), (1, 0, 1))
    (0, 1, 0, 1)
    """
    best: dict[tuple[int, int], Kinds] = {}
    for i in range(len(a), -1, -1):
        for j in range(len(b), -1, -1):
            if i == len(a) or j == len(b):
                best[i, j] = a[i:] + b[j:]
            elif a[i] == b[j]:
                best[i, j] = a[i : i + 1] + best[i + 1, j + 1]
            else:
                one, other = a[i : i + 1] + best[i + 1, j], b[j : j + 1] + best[i, j + 1]
                best[i, j] = min(one, other, key=len)
    return best[0, 0]
