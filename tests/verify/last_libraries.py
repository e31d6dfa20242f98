# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportMissingTypeStubs=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false
# flax, optax and equinox are there in the full check only.
"""Mistakes written after the last change to the findings, in Linen, NNX, Equinox and optax.

Every builder has a sound form, `mistaken=False`; the line of a mistake ends in its builder's name.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from mutants import abstract
from style_libraries import ROWS, D, F, placed

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
_pin = jax.lax.with_sharding_constraint


def linen_rules(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The rules of logical axes have no word for the batch, so activations are whole over X."""
    from flax import linen as nn

    rules = [("mlp", "Y"), ("embed", None), ("batch", None if mistaken else "X")]

    def dense(width: int, names: Any) -> Any:
        init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)
        kinds: dict[str, Any] = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
        return nn.Dense(width, use_bias=False, kernel_init=init, **kinds)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(2):
                h = nn.gelu(dense(F, ("embed", "mlp"))(x))
                h = nn.with_logical_constraint(h, ("batch", "mlp"))  # linen_rules
                x = x + dense(D, ("mlp", "embed"))(h)
                x = nn.with_logical_constraint(x, ("batch", "embed"))  # linen_rules
            return x

    model = Model()

    def forward(state: Any, x: jax.Array) -> Any:
        with nn.logical_axis_rules(rules):
            return model.apply(state, x)

    key = jax.eval_shape(lambda: jax.random.key(0))
    like = jax.eval_shape(lambda k: model.init(k, jnp.zeros((8, D), jnp.bfloat16)), key)
    specs = nn.logical_to_mesh(nn.get_partition_spec(like), rules)
    state = jax.tree.map(lambda x, spec: abstract(mesh, x.shape, spec), nn.unbox(like), specs)
    return jax.jit(forward), (state, abstract(mesh, (ROWS, D), P("X", None)))


def nnx_cache(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Decode of an NNX layer whose cache is a Variable, in a step that keeps the old one."""
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.q = nnx.LinearGeneral(D, (32, 128), use_bias=False, rngs=rngs)
            self.kv = nnx.LinearGeneral(D, (2, 32, 128), use_bias=False, rngs=rngs)
            self.cache = nnx.Cache(jnp.zeros((2, 32, 8192, 32, 128), jnp.bfloat16))

        def __call__(self, x: jax.Array, at: jax.Array) -> jax.Array:
            new = jnp.moveaxis(self.kv(x), 1, 0)[:, :, None].astype(jnp.bfloat16)
            old = self.cache[...]
            kept = jax.lax.dynamic_update_slice_in_dim(old, new, at, 2)  # nnx_cache
            self.cache[...] = kept
            s = jnp.einsum("bnh,bsnh->bns", self.q(x).astype(jnp.bfloat16), kept[0])
            p = jax.nn.softmax(s.astype(jnp.float32), axis=-1).astype(jnp.bfloat16)
            return jnp.einsum("bns,bsnh->bnh", p, kept[1])

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        if "cache" in path:
            return P(None, "X", None, "Y", None)
        return P(*[None] * (len(shape) - 2), "Y", None)

    layer = nnx.eval_shape(lambda: Layer(nnx.Rngs(0)))
    graph, params, cache = nnx.split(layer, nnx.Param, nnx.Cache)

    def step(params: Any, cache: Any, x: jax.Array, at: jax.Array) -> Any:
        layer = nnx.merge(graph, params, cache)
        out = layer(x, at)
        return out, nnx.state(layer, nnx.Cache)

    cache, params = placed(mesh, cache, spec), placed(mesh, params, spec)
    how: dict[str, Any] = {} if mistaken else {"donate_argnames": "cache"}
    x, at = abstract(mesh, (32, D), P("X", None)), jax.ShapeDtypeStruct((), jnp.int32)
    return jax.jit(step, **how), (params, cache, x, at)


def equinox_attention(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A transformer block of Equinox: the MLP is split, the four weights of attention are not."""
    import equinox as eqx

    class Block(eqx.Module):
        attention: Any
        mlp: Any

        def __init__(self, key: Any) -> None:
            kinds: dict[str, Any] = {"use_bias": False, "use_final_bias": False}
            self.attention = eqx.nn.MultiheadAttention(32, D, key=key)
            self.mlp = eqx.nn.MLP(D, D, F, 1, key=key, **kinds)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(x, x, x)  # equinox_attention
            return x + jax.vmap(self.mlp)(x)

    key = jax.eval_shape(lambda: jax.random.key(0))
    params, static = eqx.partition(
        eqx.filter_eval_shape(Block, key), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    )
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), params)

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        if "attention" in path:
            whole = P() if mistaken else P("Y", None)
            return P(None, "Y") if "output" in path and not mistaken else whole
        return P("Y", None) if "[0]" in path else P(None, "Y")

    def forward(params: Any, x: jax.Array) -> jax.Array:
        return _pin(jax.vmap(eqx.combine(params, static))(x), P("X"))

    return jax.jit(forward), (placed(mesh, params, spec), abstract(mesh, (8, 1024, D), P("X")))


def _optax(mesh: Mesh, tx: Any, mistaken: bool) -> Any:
    """Weights, the state of an optimizer with its arrays placed as they, and the loss."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        out = jax.nn.gelu(x @ params["in"].astype(x.dtype)) @ params["out"].astype(x.dtype)
        return jnp.mean(_pin(x + out, P("X", None)).astype(jnp.float32) ** 2)

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        whole = len(shape) < 2 or (mistaken and "acc_grads" in path)
        return P() if whole else P("Y", "X") if "out" in path else P("X", "Y")

    shapes = {"in": (D, 2 * F), "out": (2 * F, D)}
    like = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = placed(mesh, like, spec)
    return params, placed(mesh, jax.eval_shape(tx.init, like), spec), loss


def optax_steps(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """MultiSteps adds gradients up in arrays that nobody gave a sharding."""
    import optax

    tx = optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4)
    params, state, loss = _optax(mesh, tx, mistaken)

    def step(params: Any, state: Any, x: jax.Array) -> Any:
        grads = jax.grad(loss)(params, x)
        updates, state = tx.update(grads, state, params)  # optax_steps
        return optax.apply_updates(params, updates), state

    places = jax.tree.map(lambda leaf: leaf.sharding, (params, state))
    x = abstract(mesh, (ROWS, D), P("X", None))
    return jax.jit(step, out_shardings=places, donate_argnums=(0, 1)), (params, state, x)


def optax_average(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A moving average of the weights goes round beside a state that is donated, and is not."""
    import optax

    tx = optax.sgd(1e-3, momentum=0.9)
    params, state, loss = _optax(mesh, tx, mistaken)

    def step(params: Any, state: Any, average: Any, x: jax.Array) -> Any:
        updates, state = tx.update(jax.grad(loss)(params, x), state, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 0.001)  # optax_average
        return params, state, average

    places = jax.tree.map(lambda leaf: leaf.sharding, (params, state, params))
    donated = (0, 1) if mistaken else (0, 1, 2)
    step = jax.jit(step, out_shardings=places, donate_argnums=donated)
    return step, (params, state, params, abstract(mesh, (ROWS, D), P("X", None)))
