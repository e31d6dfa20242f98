# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false
# Libraries are imported where they are used: a test skips in words what is not installed.
"""Programs in the styles of Flax NNX, optax, Equinox and Haiku, sound or with a mistake.

Every builder has a sound form, `mistaken=False`; the line of a mistake ends in its builder's name.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mutants import abstract

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
ROWS, D, F = 8192, 4096, 16384


def placed(mesh: Mesh, tree: Any, spec: Any) -> Any:
    """Abstract arrays of a tree, each placed as `spec` says of its path and shape."""

    def place(path: Any, leaf: Any) -> Any:
        where = NamedSharding(mesh, spec(jax.tree_util.keystr(path), leaf.shape))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree_util.tree_map_with_path(place, tree)


def optax_state(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """AdamW with a schedule and clipping, in a state that nobody donates."""
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        out = jax.nn.gelu(x @ params["in"]) @ params["out"]
        return jnp.mean(jax.lax.with_sharding_constraint(out, P("X", None)) ** 2)

    def step(params: Any, opt_state: Any, x: jax.Array) -> Any:
        grads = jax.grad(loss)(params, x)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state  # optax_state

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        return P() if len(shape) < 2 else P("Y", None) if "out" in path else P(None, "Y")

    shapes = {"in": (D, 2 * F), "out": (2 * F, D)}
    like = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = placed(mesh, like, spec)
    opt_state = placed(mesh, jax.eval_shape(tx.init, params), spec)
    how: dict[str, Any] = {} if mistaken else {"donate_argnums": (0, 1)}
    places = jax.tree.map(lambda leaf: leaf.sharding, (params, opt_state))
    x = abstract(mesh, (ROWS, D), P("X", None), jnp.float32)
    return jax.jit(step, out_shardings=places, **how), (params, opt_state, x)


def optax_moments(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The moments of Adam have no sharding, the weights have."""
    import optax

    tx = optax.adam(1e-3)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ params["in"]) @ params["out"]) ** 2)

    def step(params: Any, opt_state: Any, x: jax.Array) -> Any:
        grads = jax.grad(loss)(params, x)
        updates, opt_state = tx.update(grads, opt_state, params)  # optax_moments
        return optax.apply_updates(params, updates), opt_state

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        return P() if len(shape) < 2 else P("Y", None) if "out" in path else P(None, "Y")

    shapes = {"in": (D, 2 * F), "out": (2 * F, D)}
    like = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = placed(mesh, like, spec)
    whole = (lambda path, shape: P()) if mistaken else spec
    opt_state = placed(mesh, jax.eval_shape(tx.init, params), whole)
    x = abstract(mesh, (ROWS, D), P("X", None), jnp.float32)
    places = jax.tree.map(lambda leaf: leaf.sharding, (params, opt_state))
    jitted = jax.jit(step, out_shardings=places, donate_argnums=(0, 1))
    return jitted, (params, opt_state, x)


def nnx_mlp(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A Flax NNX MLP whose kernels are split on the narrow dims."""
    from flax import nnx

    first, second = (("Y", None), (None, "Y")) if mistaken else ((None, "Y"), ("Y", None))

    class Mlp(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            kernel = nnx.initializers.lecun_normal()
            kinds: dict[str, Any] = {"use_bias": False, "dtype": jnp.bfloat16, "rngs": rngs}
            self.up = nnx.Linear(D, F, kernel_init=kernel, param_dtype=jnp.bfloat16, **kinds)
            self.down = nnx.Linear(F, D, kernel_init=kernel, param_dtype=jnp.bfloat16, **kinds)

        def __call__(self, x: jax.Array) -> jax.Array:
            hidden = nnx.gelu(self.up(x))  # nnx_mlp
            return x + self.down(hidden)

    graph, state = nnx.split(nnx.eval_shape(lambda: Mlp(nnx.Rngs(0))))

    def forward(state: Any, x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(nnx.merge(graph, state)(x), P("X", None))

    state = placed(mesh, state, lambda path, _: P(*(first if "up" in path else second)))
    return jax.jit(forward), (state, abstract(mesh, (ROWS, D), P("X", None)))


def nnx_head(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """The output head of an NNX model is whole on every device, its embedding is split."""
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Embed(65536, D, param_dtype=jnp.bfloat16, rngs=rngs)
            self.head = nnx.Linear(
                D, 65536, use_bias=False, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, rngs=rngs
            )

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = self.embed(tokens).astype(jnp.bfloat16)
            return self.head(jax.lax.with_sharding_constraint(x, P("X", None)))  # nnx_head

    graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))

    def forward(state: Any, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, state)(tokens)
        return jax.lax.with_sharding_constraint(logits, P("X", "Y"))

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        return P(None, "Y") if "embed" in path or not mistaken else P()

    tokens = abstract(mesh, (ROWS,), P("X"), jnp.int32)
    return jax.jit(forward), (placed(mesh, state, spec), tokens)


def equinox_mlp(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """An Equinox MLP under vmap; its weights are stored as (out, in), and split as if (in, out)."""
    import equinox as eqx

    model = eqx.filter_eval_shape(
        lambda key: eqx.nn.MLP(
            D, D, F, 1, jax.nn.gelu, use_bias=False, use_final_bias=False, key=key
        ),
        _key(),
    )
    params, static = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def forward(params: Any, x: jax.Array) -> jax.Array:
        out = jax.vmap(eqx.combine(params, static))(x)  # equinox_mlp
        return jax.lax.with_sharding_constraint(x + out, P("X", None))

    first, second = (P(None, "Y"), P("Y", None)) if mistaken else (P("Y", None), P(None, "Y"))
    half = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), params)
    params = placed(mesh, half, lambda path, _: first if "[0]" in path else second)
    return jax.jit(forward), (params, abstract(mesh, (ROWS, D), P("X", None)))


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def haiku_mlp(mesh: Mesh, *, mistaken: bool = True) -> Built:
    """A transformed Haiku function; rows are not split, though X is there for them."""
    import haiku as hk

    def net(x: jax.Array) -> jax.Array:
        hidden = jax.nn.gelu(hk.Linear(F, with_bias=False)(x))  # haiku_mlp
        return x + hk.Linear(D, with_bias=False)(hidden)

    pure = hk.without_apply_rng(hk.transform(net))
    like = jax.ShapeDtypeStruct((ROWS, D), jnp.bfloat16)
    params = jax.eval_shape(pure.init, _key(), like)

    def spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
        return P(None, "Y") if shape[0] == D else P("Y", None)

    rows = P(None, None) if mistaken else P("X", None)
    return jax.jit(pure.apply), (placed(mesh, params, spec), abstract(mesh, (ROWS, D), rows))
