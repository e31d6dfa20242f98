"""One feed-forward layer under a layout: how long its matmuls and its collectives take.

In: a mesh, a layout, sizes. Out: seconds, as chapters 5 and 12 count them: matmuls at the peak,
collectives by the rule for large groups. Every line comes from `plan.derive_algorithm`.
Legend: B tokens, D model, F feed-forward, X and Y ways of data and tensor parallelism, N chips.

`Law`: a quantity that goes with powers of some sizes, read off the library's own answers. The book
treats ways and batches as real numbers; meshes and arrays have whole ones. A quantity is therefore
asked for at a few sizes that divide, and its powers continue it to any size. Nothing here knows
what the powers should be, and a quantity that follows none is refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rooflight.book.derivation import Line
from rooflight.costs.network import NetworkTime
from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import ModelError
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Repeat
from rooflight.plan.training.derive.algorithm import PricedStep, derive_algorithm

Sizes = Mapping[str, int]
Quantities = Mapping[str, float]

_HALVINGS = 64  # of the logarithm of an interval; floats have run out of digits by then
_SAME = 1e-9

MATMULS = "matmuls"
_WIDE: Sizes = {"B": 2**20, "D": 2**13, "F": 2**15}  # FLOPs bind, and all that divides them divides
_SQUARE: Sizes = {"X": 16, "Y": 4}  # a cube of 4: X on two rings of it, Y on the third
LARGEST = 1e12  # no batch or degree of the book comes near


By = Callable[[NetworkTime], float]


@dataclass(frozen=True, slots=True)
class Law:
    """scale * product of size ** power.

    >>> Law(3.0, {"B": 1.0, "X": -1.0}).at({"B": 10, "X": 4, "Y": 2})
    7.5
    """

    scale: float
    powers: Mapping[str, float]

    def at(self, sizes: Mapping[str, float]) -> float:
        return self.scale * math.prod(sizes[name] ** p for name, p in self.powers.items())


def by_rule(time: NetworkTime) -> float:
    """A collective as the book counts it, for large groups."""
    return time.rule_s


@dataclass(frozen=True, slots=True)
class BookLayer:
    """A layout of the layer, and which of its lines count.

    `experts` is (E, k) of a mixture. `by` says which time of a collective is meant.
    """

    layout: str
    forward: bool = False
    backward: bool = False
    dtype: Dtype = DTYPES["bf16"]
    experts: tuple[int, int] | None = None
    by: By = by_rule

    def lines(self, mesh: Mesh, sizes: Sizes) -> tuple[PricedStep, ...]:
        """The derived lines that take time."""
        graph = _graph(sizes["D"], sizes["F"], self.experts)
        found = derive_algorithm(
            graph,
            [op for op in graph.ops if op.part in ("mlp", "experts")],
            parse_layout(self.layout),
            mesh=mesh,
            dims=dim_sizes(graph, batch=sizes["B"], seq=1),
            dtype=self.dtype,
        )
        lines = found.forward if self.forward else ()
        lines += found.backward if self.backward else ()
        return tuple(x for x in lines if not x.saved and (x.price.op or x.price.network))

    def seconds(self, mesh: Mesh, sizes: Sizes) -> dict[str, float]:
        """Seconds of the matmuls, and of the collectives over each mesh axis."""
        spent: dict[str, float] = {}
        for line in self.lines(mesh, sizes):
            if line.price.op:
                where, seconds = MATMULS, line.price.op.roofs[0].seconds
            else:
                assert line.price.network
                where, seconds = "+".join(line.step.axes), self.by(line.price.network)
            spent[where] = spent.get(where, 0.0) + seconds
        return spent

    def shown(self, mesh: Mesh) -> tuple[Line, ...]:
        """The collectives as lines of a derivation, at the sizes `tokens_bound` starts from."""
        lines = self.lines(mesh, _dividing(mesh))
        return tuple(
            Line(str(x.step), self.by(x.price.network), "s") for x in lines if x.price.network
        )


def _graph(width: int, inner: int, experts: tuple[int, int] | None) -> Graph:
    """Two matrices, as the book has it: no gate."""
    mlp: Mlp | Moe = Mlp(inner, is_gated=False)
    if experts:
        mlp = Moe(*experts, mlp)
    layers = (Repeat((Block(Attention(1, 1, 1), mlp),), 1),)
    return model_graph(ModelSpec("book", "a feed-forward layer", width, 1, layers))


def _dividing(mesh: Mesh) -> dict[str, int]:
    """Sizes that every axis of a mesh divides; D and F cancel where a batch is asked for."""
    chips = mesh.slice.num_chips
    return {"B": 2**12 * chips, "D": 2 * chips, "F": 4 * chips}


def tokens_bound(layer: BookLayer, mesh: Mesh, *, axis: str | None = None) -> float:
    """The batch from which matmuls take longer than collectives, or than those of one axis."""
    sizes = _dividing(mesh)

    def ask(given: Sizes) -> Quantities:
        return layer.seconds(mesh, {**sizes, **given})

    laws = fit(ask, {"B": sizes["B"]})
    waited_for = [laws[axis]] if axis else [laws[name] for name in laws if name != MATMULS]

    def spare_s(tokens: float) -> float:
        given = {"B": tokens}
        return laws[MATMULS].at(given) - sum(law.at(given) for law in waited_for)

    return root(spare_s, 1, LARGEST)


def on_a_cube(layer: BookLayer, chip: Chip) -> Mapping[str, Law]:
    """Laws in B, D, F, X and Y on a torus of three rings: X on two of them, Y on one."""
    return fit(lambda sizes: layer.seconds(cube(chip, sizes), sizes), {**_WIDE, **_SQUARE})


def cube(chip: Chip, sizes: Sizes) -> Mesh:
    """X over two whole axes and Y over the third."""
    outer = _SQUARE["Y"] * (2 if sizes["X"] > _SQUARE["X"] else 1)
    shape = (outer, sizes["X"] // outer, sizes["Y"])
    return parse_mesh(f"X={sizes['X']}@x+y,Y={sizes['Y']}@z", on=Slice(chip, shape))


def fit(ask: Callable[[Sizes], Quantities], base: Sizes) -> dict[str, Law]:
    """The law of every quantity, from `base`, each size doubled alone, and a check far away.

    >>> laws = fit(lambda s: {"area": 2.0 * s["a"] * s["a"] / s["b"]}, {"a": 4, "b": 8})
    >>> laws["area"].at({"a": 3, "b": 1})
    18.0
    """
    start = ask(base)
    doubled = {name: ask({**base, name: 2 * size}) for name, size in base.items()}
    laws = {
        quantity: _through(base, value, {name: found[quantity] for name, found in doubled.items()})
        for quantity, value in start.items()
    }
    far = {name: 4 * size for name, size in base.items()}
    for quantity, value in ask(far).items():
        if not math.isclose(laws[quantity].at(far), value, rel_tol=_SAME):
            raise ModelError(f"{quantity} does not go with powers of {', '.join(base)}")
    return laws


def _through(base: Sizes, value: float, doubled: Mapping[str, float]) -> Law:
    powers = {name: math.log2(other / value) for name, other in doubled.items()}
    return Law(value / math.prod(base[name] ** p for name, p in powers.items()), powers)


def root(gap: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of a positive size changes its sign, by halving the ratio of the ends.

    >>> round(root(lambda x: x * x - 2, 1, 4), 9)
    1.414213562
    """
    is_above = gap(low) > 0
    if is_above == (gap(high) > 0):
        raise ModelError(f"no crossing between {low:g} and {high:g}")
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if (gap(middle) > 0) == is_above:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
