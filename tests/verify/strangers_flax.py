# pyright: reportMissingImports=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportUntypedFunctionDecorator=false
# flax is there in the full check only.
"""A Flax language model as the library's own guide splits one: what `verify --fn` meets outside.

Kernels carry names of mesh axes (`with_partitioning`), the state's shardings are read off them
(`get_sharding`), and activations are constrained in the layers.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingTypeStubs]
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
Built = tuple[Any, tuple[Any, ...]]
_WIDTH, _HEADS, _LAYERS, _VOCAB, _BATCH, _SEQ = 2048, 16, 4, 32768, 32, 1024


def _init(*names: str | None) -> Any:
    return nn.with_partitioning(nn.initializers.lecun_normal(), names)


class Layer(nn.Module):
    """Attention and a gated MLP; `hidden` is how the MLP's hidden array is constrained."""

    mesh: Any
    hidden: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def put(x: jax.Array, *names: str | None) -> jax.Array:
            return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(*names)))

        h = nn.RMSNorm(dtype=jnp.bfloat16)(x)
        attended = nn.MultiHeadDotProductAttention(
            _HEADS,
            dtype=jnp.bfloat16,
            use_bias=False,
            kernel_init=_init(None, "model", None),
            out_kernel_init=_init("model", None, None),
        )(h, mask=nn.make_causal_mask(x[..., 0]))
        x = put(x + attended, "data", None, None)
        m = nn.RMSNorm(dtype=jnp.bfloat16)(x)
        dense = partial(nn.Dense, dtype=jnp.bfloat16, use_bias=False)
        gate = dense(4 * _WIDTH, kernel_init=_init(None, "model"))(m)
        up = dense(4 * _WIDTH, kernel_init=_init(None, "model"))(m)
        hidden = put(nn.silu(gate) * up, *self.hidden)  # what the MLP keeps
        out = dense(_WIDTH, kernel_init=_init("model", None))(hidden)
        return put(x + out, "data", None, None)


class Model(nn.Module):
    """Tokens to logits."""

    mesh: Any
    hidden: Any

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = nn.Embed(_VOCAB, _WIDTH, dtype=jnp.bfloat16, embedding_init=_init(None, "model"))
        x = table(tokens)
        for _ in range(_LAYERS):
            x = nn.remat(Layer)(self.mesh, self.hidden)(x)
        head = nn.Dense(
            _VOCAB, dtype=jnp.bfloat16, use_bias=False, kernel_init=_init(None, "model")
        )
        return head(nn.RMSNorm(dtype=jnp.bfloat16)(x))


def _built(mesh: Mesh, *hidden: str | None) -> Built:
    model = Model(mesh, hidden)
    tokens = jax.ShapeDtypeStruct(
        (_BATCH, _SEQ), jnp.int32, sharding=NamedSharding(mesh, P("data", None))
    )

    def start(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.zeros((1, _SEQ), jnp.int32))
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    with mesh:
        like = jax.eval_shape(start, jax.random.key(0))
    places = nn.get_sharding(like, mesh)
    state = jax.tree.map(
        lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), nn.unbox(like), places
    )

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = jnp.asarray(model.apply(params, tokens), jnp.float32)
        found = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
        return found.mean()

    def step(state: TrainState, tokens: jax.Array) -> TrainState:
        return state.apply_gradients(grads=jax.grad(loss)(state.params, tokens))

    jitted = jax.jit(step, out_shardings=places, donate_argnums=0)
    return jitted, (state, tokens)


def sound(mesh: Mesh) -> Built:
    """The hidden array is split as the kernels are."""
    return _built(mesh, "data", None, "model")


def whole_hidden(mesh: Mesh) -> Built:
    """The constraint on the hidden array forgets the axis that splits the kernels."""
    return _built(mesh, "data", None, None)
