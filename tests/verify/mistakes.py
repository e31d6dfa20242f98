"""Programs of a plan with one mistake each, as people make them; the judge must see every one."""

from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rooflight.plan.file.record import from_json
from rooflight.program.from_plan import serve as build_serve
from rooflight.program.from_plan.train import build_step, make_program

Built = tuple[Any, tuple[Any, ...]]
_W_OUT = "layers[0][0]['mlp.W_out']"


def unsharded_weight(mesh: Mesh, *, plan: str) -> Built:
    """W_out is stored whole on every device."""
    return _stored(mesh, plan, PartitionSpec())


def transposed_weight(mesh: Mesh, *, plan: str) -> Built:
    """W_out[F,D] is stored with F split instead of D: as many bytes, another place."""
    return _stored(mesh, plan, PartitionSpec(None, "X", None))


def _stored(mesh: Mesh, plan: str, spec: PartitionSpec) -> Built:
    decided = from_json(plan)
    step, (state, batch) = build_step(mesh, decided, make_program(decided))

    def moved(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if not jax.tree_util.keystr(path).endswith(f".params.{_W_OUT}"):
            return leaf
        assert isinstance(leaf.sharding, NamedSharding)
        sharding = NamedSharding(leaf.sharding.mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return step, (jax.tree_util.tree_map_with_path(moved, state), batch)


def wrong_layout(mesh: Mesh, *, plan: str) -> Built:
    """Weights are stored whole where the plan splits them: dp instead of fsdp."""
    other = replace(from_json(plan), layout="dp=X")
    return build_step(mesh, other, make_program(other))


def wide_matmuls(mesh: Mesh, *, plan: str) -> Built:
    """Weights are gathered in fp32: twice the bytes."""
    decided = from_json(plan)
    return build_step(mesh, decided, replace(make_program(decided), compute="f32"))


def no_remat(mesh: Mesh, *, plan: str) -> Built:
    """The policy that the plan counts on is left out."""
    decided = from_json(plan)
    return build_step(mesh, decided, replace(make_program(decided), remat="none"))


def weights_gathered(mesh: Mesh, *, plan: str) -> Built:
    """Of a served step: keys' weights are stored split over D too, and gathered to be used."""
    generate, (params, *others) = build_serve.build(mesh, plan=plan)
    (weights,) = params.layers[0]
    whole = weights["attention.W_k"]
    split = NamedSharding(whole.sharding.mesh, PartitionSpec(None, "Z", "Y"))
    stored = jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=split)

    def step(params: Any, cache: Any, *rows: jax.Array) -> Any:
        (weights,) = params.layers[0]
        gathered = jax.reshard(weights["attention.W_k"], whole.sharding.spec)
        layers = ((weights | {"attention.W_k": gathered},),)
        return generate(params._replace(layers=layers), cache, *rows)

    layers = ((weights | {"attention.W_k": stored},),)
    return jax.jit(step), (params._replace(layers=layers), *others)
