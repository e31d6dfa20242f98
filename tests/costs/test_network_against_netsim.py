"""Formulas against the link-level simulator, which shares no line with them.

`disagreements` prices and simulates a table of cases. Bandwidth-bound and latency-bound, every
collective must agree within 1 %; in between, one axis must, and several must keep the bounds.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from rooflight.costs.netsim.simulate import simulate
from rooflight.costs.network import (
    KINDS,
    CollectiveKind,
    NetworkTime,
    collective_time,
    permute_time,
)
from rooflight.hardware.mesh import Group, parse_mesh
from rooflight.hardware.slice import parse_slice

from ..netsim.send import simulate_send

TOLERANCE = 0.01
SMALL, MIDDLE, LARGE = 1.0, 2e5, 1e13  # bytes: latency binds, neither, bandwidth binds

ONE_AXIS = [
    ("v5e:2x1", "X=2", "X"),
    ("v5e:3x2", "X=3,Y=2", "X"),
    ("v5e:4x4", "X=4,Y=4", "Y"),
    ("v5e:5x1", "X=5", "X"),
    ("v5e:16x1", "X=16", "X"),
    ("v5e:16x1", "X=4,A=4", "X"),  # every fourth chip of a ring: itself a ring
    ("v5e:16x1", "X=4,A=4", "A"),  # four neighbours of a ring: a line
    ("v5e:16x1", "X=2,A=2,B=4", "A"),  # a part from the middle
    ("v5e:6x1", "X=3,A=2", "X"),  # every second chip of a line
    ("v5p:4x4x4", "X=4,Y=4,Z=4", "Y"),
    ("v3:8x1", "X=8", "X"),
]
SEVERAL_AXES = [
    ("v5e:2x2", "X=2,Y=2", "XY"),
    ("v5e:4x4", "X=4,Y=4", "XY"),
    ("v5e:3x5", "X=3,Y=5", "XY"),
    ("v5e:8x2", "X=8,Y=2", "XY"),
    ("v5e:4x2", "X=2,A=2,Y=2", "XY"),
    ("v5p:4x2x2", "X=4,Y=2,Z=2", "XYZ"),
    ("v5p:2x3x4", "X=2,Y=3,Z=4", "XYZ"),
]
LARGE_SLICES = [  # of the same kinds, simulated in minutes
    ("v5e:15x1", "X=15", "X"),
    ("v5e:16x2", "X=4,A=4,Y=2", "X"),
    ("v5e:16x2", "X=4,A=4,Y=2", "A"),
    ("v5e:12x1", "X=3,A=4", "X"),
    ("v5p:4x4x4", "X=2,A=2,Y=4,Z=4", "X"),  # a ring of two
    ("v3:32x1", "X=32", "X"),
    ("v3:32x1", "X=8,A=4", "X"),
    ("v5e:16x2", "X=16,Y=2", "XY"),
    ("v5e:16x4", "X=4,A=4,Y=4", "AY"),
    ("v5e:8x2", "X=2,A=4,Y=2", "XY"),
    ("v5p:4x4x4", "X=4,Y=4,Z=4", "XZ"),
    ("v5p:4x4x4", "X=4,Y=4,Z=4", "XYZ"),
    ("v5p:4x4x4", "X=2,A=2,Y=2,B=2,Z=4", "XBZ"),
]

Case = tuple[str, str, str]
Pricing = Callable[[CollectiveKind, float, Group], NetworkTime]


@cache
def simulated_seconds(kind: CollectiveKind, nbytes: float, case: Case) -> float:
    on, axes, names = case
    return simulate(kind, nbytes, parse_mesh(axes, on=on), _names(names)).seconds


def _names(text: str) -> list[str]:
    return text.split(",") if "," in text or len(text) > 3 or text[-1].isdigit() else list(text)


def disagreements(
    pricing: Pricing, case: Case, sizes: Sequence[float], kinds: Sequence[CollectiveKind] = KINDS
) -> list[str]:
    """Every collective whose formula and simulation are too far apart, as text."""
    on, axes, names = case
    group = parse_mesh(axes, on=on).group(_names(names))
    found: list[str] = []
    for nbytes, kind in product(sizes, kinds):
        seconds = simulated_seconds(kind, nbytes, case)
        priced = pricing(kind, nbytes, group)
        if nbytes != MIDDLE or (len(group.rings) == 1 and kind != "all_to_all"):
            off = seconds / priced.expected_s - 1
            if abs(off) > TOLERANCE:
                found.append(f"{kind} of {nbytes:g} B: simulated {off:+.1%}")
        elif not priced.lower_s * (1 - 1e-9) <= seconds <= priced.upper_s * (1 + 1e-9):
            found.append(f"{kind} of {nbytes:g} B: {seconds} s is out of bounds")
    return found


@pytest.mark.parametrize("case", ONE_AXIS, ids=" ".join)
def test_one_axis_agrees_in_every_regime(case: Case) -> None:
    assert not disagreements(collective_time, case, (SMALL, MIDDLE, LARGE))


@pytest.mark.parametrize("case", SEVERAL_AXES, ids=" ".join)
def test_several_axes_agree_when_bandwidth_or_latency_binds(case: Case) -> None:
    assert not disagreements(collective_time, case, (SMALL, LARGE))


@pytest.mark.parametrize("case", [SEVERAL_AXES[i] for i in (0, 4)], ids=" ".join)
def test_several_axes_keep_the_bounds_in_between(case: Case) -> None:
    assert not disagreements(collective_time, case, (MIDDLE,))


@pytest.mark.full
@pytest.mark.parametrize("case", LARGE_SLICES, ids=" ".join)
def test_larger_slices_agree_in_every_regime(case: Case) -> None:
    assert not disagreements(collective_time, case, (SMALL, MIDDLE, LARGE))


@pytest.mark.parametrize(
    ("on", "source", "target"),
    [
        ("v5e:4x4", (0, 0), (3, 3)),
        ("v5e:4x4", (1, 0), (1, 3)),
        ("v5e:16x2", (1, 0), (15, 1)),
        ("v5p:4x4x4", (0, 0, 0), (2, 2, 2)),
        ("v5p:4x4x4", (0, 0, 0), (1, 2, 3)),
    ],
)
@pytest.mark.parametrize("nbytes", [SMALL, MIDDLE, LARGE])
def test_sending_between_two_chips_agrees(
    on: str, source: tuple[int, ...], target: tuple[int, ...], nbytes: float
) -> None:
    place = parse_slice(on)
    priced = permute_time(nbytes, place, source=source, target=target)
    seconds = simulate_send(nbytes, place, source=source, target=target).seconds
    assert abs(seconds / priced.expected_s - 1) <= TOLERANCE


def random_case(rng: random.Random) -> Case:
    """A mesh of 2 to 64 chips on a 2D or 3D slice, some axes cut in two, one to three in use."""
    chip, dims = rng.choice((("v5e", 2), ("v5p", 3), ("v3", 2)))
    while True:
        shape = [rng.choice((1, 2, 3, 4, 5, 6, 8, 12, 16)) for _ in range(dims)]
        if 2 <= math.prod(shape) <= 64:
            break
    parts: list[str] = []
    used: list[str] = []
    for dim, size in zip("xyz", shape, strict=False):
        if size == 1:
            continue
        outer = rng.choice([n for n in range(1, size + 1) if size % n == 0])
        pair = [(n, f"{dim.upper()}{i}") for i, n in enumerate((outer, size // outer)) if n > 1]
        parts += [f"{name}={n}@{dim}" for n, name in pair]
        used.append(rng.choice(pair)[1])
    names = rng.sample(used, rng.randint(1, len(used)))
    return f"{chip}:{'x'.join(map(str, shape))}", ",".join(parts), ",".join(sorted(names))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
def test_random_meshes_of_up_to_64_chips_agree(seed: int) -> None:
    rng = random.Random(seed)
    cases = [random_case(rng) for _ in range(10)]
    found = {case: disagreements(collective_time, case, (SMALL, LARGE)) for case in cases}
    assert not {case: texts for case, texts in found.items() if texts}


# A check that cannot fail proves nothing: each term of each formula, 5 % wrong, must be found.


def planted(bandwidth: float, latency: float) -> Pricing:
    """The true formulas with a factor on their bandwidth or latency term."""

    def pricing(kind: CollectiveKind, nbytes: float, group: Group) -> NetworkTime:
        true = collective_time(kind, nbytes, group)
        extra_s = (bandwidth - 1) * true.bandwidth_s + (latency - 1) * true.latency_s
        return replace(true, expected_s=true.expected_s + extra_s)

    return pricing


@pytest.mark.parametrize("factor", [0.95, 1.05])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [ONE_AXIS[2], SEVERAL_AXES[1]], ids=" ".join)
def test_a_term_five_percent_wrong_is_found(
    case: Case, kind: CollectiveKind, factor: float
) -> None:
    assert disagreements(planted(factor, 1.0), case, (LARGE,), [kind])
    assert disagreements(planted(1.0, factor), case, (SMALL,), [kind])
