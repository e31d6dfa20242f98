"""A layer of routed experts to be compiled: left to the compiler, or with its exchange written."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rooflight.models.spec import Mlp, Moe
from rooflight.program.moe.all_to_all import moe_all_to_all
from rooflight.program.moe.layer import Experts
from rooflight.program.moe.routing import route

ExpertsOf: Any = Experts  # of specs or shapes
SPLIT = ExpertsOf(P("X"), P("X"), P("X"))


def layer(
    mesh: Mesh,
    *,
    experts: int,
    active: int,
    tokens: int,
    width: int,
    hidden: int,
    headroom: float,
    is_explicit: bool,
    chunks: int = 1,
) -> tuple[Any, tuple[Any, ...]]:
    """Tokens and experts split over X; places for `headroom` times the rows of balanced tokens."""
    moe = Moe(experts, active, Mlp(hidden))
    places = int(headroom * tokens * active / experts)

    def run(axis: str | None, capacity: int) -> Callable[..., Any]:
        return lambda x, router, weights: moe_all_to_all(
            *(x, route(moe, x @ router), weights), axis=axis, capacity=capacity, chunks=chunks
        )[0]

    def like(spec: P, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    given = (P("X"), P(), SPLIT)
    ways = mesh.shape["X"]
    made = (
        jax.shard_map(
            run("X", places // ways // chunks), mesh=mesh, in_specs=given, out_specs=P("X")
        )
        if is_explicit
        else run(None, places)
    )
    shapes = ((width, hidden), (hidden, width), (width, hidden))
    weights = ExpertsOf(*(like(P("X"), experts, *shape) for shape in shapes))
    arguments = like(P("X"), tokens, width), like(P(), width, experts), weights
    return jax.jit(made, out_shardings=NamedSharding(mesh, P("X"))), arguments
