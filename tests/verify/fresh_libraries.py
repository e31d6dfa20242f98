# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportMissingTypeStubs=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# flax, optax and equinox are there in the full check only.
"""Mistakes written after the last change to the findings, in Linen, NNX and Equinox.

Every builder has a sound form, `mistaken=False`; the line of a mistake ends in its builder's name.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mutants import abstract
from style_libraries import ROWS, D, F, placed

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
_pin = jax.lax.with_sharding_constraint


def _linen(mesh: Mesh, first: Any, second: Any, third: Any, layers: int = 2) -> Any:
    """A gated MLP with names on its kernels; the module, its state, where that lies."""
    from flax import linen as nn

    def dense(width: int, names: Any) -> Any:
        init = nn.initializers.lecun_normal()
        init = nn.with_partitioning(init, names) if names else init
        kinds: dict[str, Any] = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
        return nn.Dense(width, use_bias=False, kernel_init=init, **kinds)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(layers):
                gate = nn.silu(dense(F, first)(x))  # linen_across
                up = dense(F, second)(x)  # linen_sibling
                x = x + _pin(dense(D, third)(gate * up), P("X", None))  # linen_gradients
            return x

    model = Model()

    def start(key: jax.Array) -> Any:
        return model.init(key, jnp.zeros((ROWS, D), jnp.bfloat16))

    rows = abstract(mesh, (ROWS, D), P("X", None))
    with mesh:
        like = jax.eval_shape(start, jax.eval_shape(lambda: jax.random.key(0)))
    state = jax.tree.map(
        lambda x, spec: abstract(mesh, x.shape, spec), _values(like), nn.get_partition_spec(like)
    )
    return model, state, jax.tree.map(lambda leaf: leaf.sharding, state), rows


def _values(like: Any) -> Any:
    return jax.tree.map(lambda x: getattr(x, "value", x), like, is_leaf=lambda x: "value" in dir(x))


def linen_across(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The names of the kernels' dims are the wrong way round."""
    first, second = (("Y", None), (None, "Y")) if mistaken else ((None, "Y"), ("Y", None))
    model, state, _, rows = _linen(mesh, first, first, second)
    return jax.jit(model.apply), (state, rows)


def linen_sibling(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """One kernel of three has no names, so it is whole everywhere."""
    second = None if mistaken else (None, "Y")
    model, state, _, rows = _linen(mesh, (None, "Y"), second, ("Y", None), 4)
    return jax.jit(model.apply), (state, rows)


def linen_gradients(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Gradients are returned to a step that keeps them whole."""
    model, state, places, rows = _linen(mesh, ("X", "Y"), ("X", "Y"), ("Y", "X"))

    def loss(state: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(model.apply(state, x).astype(jnp.float32) ** 2)

    whole = jax.tree.map(lambda place: NamedSharding(mesh, P()), places)
    return jax.jit(jax.grad(loss), out_shardings=whole if mistaken else places), (state, rows)


def nnx_state(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Weights and the state of an optax optimizer go round a step that keeps the old ones."""
    import optax
    from flax import nnx

    class Mlp(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            kinds: dict[str, Any] = {"use_bias": False, "rngs": rngs}
            self.up = nnx.Linear(D, F, **kinds)
            self.down = nnx.Linear(F, D, **kinds)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.down(nnx.gelu(self.up(x)))

    graph, like = nnx.split(nnx.eval_shape(lambda: Mlp(nnx.Rngs(0))))
    tx = optax.adam(1e-3)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(_pin(nnx.merge(graph, params)(x), P("X", None)) ** 2)

    def step(params: Any, moments: Any, x: jax.Array) -> Any:
        updates, moments = tx.update(jax.grad(loss)(params, x), moments, params)
        return optax.apply_updates(params, updates), moments  # nnx_state

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        return P() if len(shape) < 2 else P(None, "Y") if "up" in path else P("Y", None)

    params = placed(mesh, like, spec)
    moments = placed(mesh, jax.eval_shape(tx.init, like), spec)
    how: dict[str, Any] = {} if mistaken else {"donate_argnums": (0, 1)}
    places = jax.tree.map(lambda leaf: leaf.sharding, (params, moments))
    x = abstract(mesh, (ROWS, D), P("X", None), jnp.float32)
    return jax.jit(step, out_shardings=places, **how), (params, moments, x)


def nnx_wide(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Weights are f32 and `dtype` is left out, so matmuls and their sums are f32."""
    from flax import nnx

    kinds: dict[str, Any] = {} if mistaken else {"dtype": jnp.bfloat16}

    class Mlp(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up = nnx.Linear(D, F, use_bias=False, rngs=rngs, **kinds)
            self.down = nnx.Linear(F, D, use_bias=False, rngs=rngs, **kinds)

        def __call__(self, x: jax.Array) -> jax.Array:
            out = self.down(nnx.gelu(self.up(x)))  # nnx_wide
            return x + _pin(out, P("X", None)).astype(x.dtype)

    graph, state = nnx.split(nnx.eval_shape(lambda: Mlp(nnx.Rngs(0))))
    state = placed(mesh, state, lambda path, _: P(None, "Y") if "up" in path else P("Y", None))

    def forward(state: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, state)(x)

    return jax.jit(forward), (state, abstract(mesh, (ROWS, D), P("X", None)))


def _equinox(mesh: Mesh, spec: Any, rows: PartitionSpec) -> Built:
    import equinox as eqx

    key = jax.eval_shape(lambda: jax.random.key(0))
    kinds: dict[str, Any] = {"use_bias": False, "use_final_bias": False}
    like = eqx.filter_eval_shape(lambda k: eqx.nn.MLP(D, D, F, 2, key=k, **kinds), key)
    params, static = eqx.partition(like, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def forward(params: Any, x: jax.Array) -> jax.Array:
        out = jax.vmap(eqx.combine(params, static))(x)  # equinox_idle, equinox_sibling
        return x + out

    half = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), params)
    return jax.jit(forward), (placed(mesh, half, spec), abstract(mesh, (ROWS, D), rows))


def equinox_idle(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """Only X splits the rows of a model that no other axis splits."""
    return _equinox(mesh, lambda path, shape: P(), P("X" if mistaken else ("X", "Y"), None))


def equinox_sibling(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The weight in the middle, the largest, is whole; the first and the last are split."""

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        if "[1]" in path:
            return P() if mistaken else P("Y", None)
        return P("Y", None) if "[0]" in path else P(None, "Y")

    return _equinox(mesh, spec, P("X", None))
