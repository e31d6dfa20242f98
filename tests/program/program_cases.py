"""Tiny models, and every layout that the planner names for them, each on meshes of a slice."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice

from rooflight.dtypes import DTYPES
from rooflight.errors import ShardingError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.rules import Layout
from rooflight.models.spec import (
    Attention,
    Block,
    Latent,
    Mlp,
    ModelSpec,
    Moe,
    Norm,
    NormPlace,
    Repeat,
    RopeScaling,
)
from rooflight.models.spec import Rope as Rotary
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.plan.training.search.space import every_placement, in_modes, templates

BATCH, SEQ, VOCAB, D_MODEL = 32, 16, 64, 32
MICROBATCHES, STAGES = 2, 2
SLICES = {8: "v5e:2x4", 16: "v5e:4x4"}
SANDWICH: tuple[NormPlace, ...] = ("attention_in", "attention_out", "mlp_in", "mlp_out")


def _model(name: str, *blocks: Block, **rest: object) -> ModelSpec:
    layers = (Repeat(tuple(blocks), STAGES),)
    return ModelSpec(name, name, D_MODEL, VOCAB, layers, **rest)  # type: ignore[arg-type]


_STRETCHED = Rotary(500_000.0, scaling=RopeScaling("llama3", 8.0, original_seq=64))
_LOCAL = Attention(8, 4, 8, window=5, qk_norm="head", softcap=20.0, scale=0.3)
_BIASED = Attention(8, 4, 8, has_sinks=True, qkv_bias=True, out_bias=True, rope=_STRETCHED)
_SIGMOID = Moe(
    *(16, 4, Mlp(32)),
    shared=Mlp(32),
    scoring="sigmoid",
    num_groups=4,
    groups_per_token=2,
    group_score="top2",
    has_choice_bias=True,
    scale=2.5,
)
MODELS = {
    m.name: m
    for m in (
        _model("dense", Block(Attention(8, 4, 8), Mlp(64))),
        _model("one_kv_head", Block(Attention(8, 1, 8), Mlp(64))),
        _model(
            "pattern",
            Block(_LOCAL, Mlp(64, activation="gelu_tanh"), SANDWICH),
            Block(_BIASED, Mlp(64, has_bias=True), SANDWICH),
            norm=Norm(adds_one=True),
            is_tied=True,
            softcap=30.0,
            embedding_scale=5.5,
        ),
        _model("moe", Block(Attention(8, 4, 8), Moe(16, 2, Mlp(32)))),
        _model("latent", Block(Attention(4, 4, 8, latent=Latent(16, 16, 4, 8)), _SIGMOID)),
    )
}


@dataclass(frozen=True, slots=True)
class Case:
    """One layout on one mesh."""

    model: str
    layout: Layout
    mesh: Mesh

    def __str__(self) -> str:
        return f"{self.model} {self.layout.text} on {self.mesh}"

    @property
    def constraints(self) -> Constraints:
        graph = model_graph(MODELS[self.model])
        dims = dim_sizes(graph, batch=BATCH // MICROBATCHES, seq=SEQ)
        return constraints_of(graph, self.layout, mesh=self.mesh, dims=dims, dtype=DTYPES["bf16"])


def alone(model: str) -> Case:
    """The same program on one device."""
    layout = next(templates(model_graph(MODELS[model])))
    return Case(model, layout, parse_mesh("X=1", on="v5e:1x1"))


def layouts(model: str) -> Iterator[Layout]:
    for layout in templates(model_graph(MODELS[model])):
        yield layout
        yield from in_modes(layout)


def cases(model: str, devices: int) -> Iterator[Case]:
    """Every pattern of the planner's search, on the most even of its meshes that divides sizes.

    After each comes the same in every mode that its schemes have.
    """
    on = parse_slice(SLICES[devices])
    for layout in layouts(model):
        placed = every_placement(layout, on)
        meshes = sorted(map(placed.mesh, range(placed.count)), key=lambda m: max(m.axes.values()))
        found = (Case(model, layout, mesh) for mesh in meshes)
        yield from islice(filter(_divides, found), 1)  # none where axes outnumber the devices


def _divides(case: Case) -> bool:
    if any(case.mesh.axes[axis] != STAGES for axis in case.layout.stages):
        return False
    try:
        return bool(case.constraints.ops)
    except ShardingError:
        return False


EVERYDAY = {"dense": 8, "moe": 16, "one_kv_head": 8}  # devices


@cache
def everyday(model: str) -> list[Case]:
    """A few cases: each scheme of the model; of `dense` each pair that none of the others has."""
    every = list(cases(model, EVERYDAY[model]))
    if model != "dense":
        return covering(every, 1)
    there = [case for other in EVERYDAY if other != model for case in everyday(other)]
    return covering(every, 2, there)


def covering(every: list[Case], together: int = 2, there: Sequence[Case] = ()) -> list[Case]:
    """A few of the cases: so many schemes that stand together anywhere still do in one of them.

    Or in one of those that are there already.
    """
    rest = sets(every, together) - sets(there, together)
    chosen: list[Case] = []
    while rest:
        best = max(every, key=lambda c: len(_sets(c, together) & rest))
        chosen.append(best)
        rest -= _sets(best, together)
    return chosen


def sets(some: Iterable[Case], together: int) -> set[frozenset[str]]:
    """Schemes that stand together in any of the cases."""
    return set[frozenset[str]]().union(*(_sets(c, together) for c in some))


def _sets(case: Case, together: int) -> set[frozenset[str]]:
    """Schemes one by one and two by two; expert axes differ by whom they share devices with."""
    parts = [p.split("=") for p in case.layout.text.split(",")]
    names = [f"{n}={a}" if n == "ep" else f"{n}{''.join(a.partition(':')[1:])}" for n, a in parts]
    return {frozenset(s) for n in range(1, together + 1) for s in combinations(names, n)}
