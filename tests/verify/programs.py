# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
"""Small programs whose collectives, FLOPs and bytes are known: what the compile tests ask for.

Each builder takes the jax mesh (axes X and Y) and returns a jitted function with its arguments.
"""

import os
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Built = tuple[Any, tuple[jax.ShapeDtypeStruct, ...]]

P = PartitionSpec


def _array(mesh: Mesh, shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))


def psum(mesh: Mesh, rows: int, cols: int) -> Built:
    """One all-reduce over X of the local block."""

    def local(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "X")

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P("X", "Y"), out_specs=P(None, "Y"))
    return jax.jit(mapped), (_array(mesh, (rows, cols), "X", "Y"),)


def gather(mesh: Mesh, rows: int, cols: int) -> Built:
    """One all-gather over Y."""

    def local(x: jax.Array) -> jax.Array:
        return jax.lax.all_gather(x, "Y", axis=1, tiled=True) * 2

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=P("X", "Y"), out_specs=P("X", None), check_vma=False
    )
    return jax.jit(mapped), (_array(mesh, (rows, cols), "X", "Y"),)


def scan(mesh: Mesh, rows: int, cols: int, outer: int, inner: int) -> Built:
    """A permute along X in a loop, an all-to-all over Y after it, both in a loop around them."""

    ring = [(i, (i + 1) % mesh.shape["X"]) for i in range(mesh.shape["X"])]

    def local(x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(jax.lax.ppermute(x, "X", ring)), None

        def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            x = jax.lax.scan(step, x, None, length=inner)[0]
            return jax.lax.all_to_all(x, "Y", 0, 0, tiled=True), None

        return jax.lax.scan(layer, x, None, length=outer)[0]

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P("X", "Y"), out_specs=P("X", "Y"))
    return jax.jit(mapped), (_array(mesh, (rows, cols), "X", "Y"),)


def fsdp(mesh: Mesh, layers: int, tokens: int, model: int, hidden: int) -> Built:
    """Loss and weight gradients of MLP layers: weights split over X and Y, tokens over X."""

    def sharded(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, P(*axes))

    def loss(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            product = jax.nn.silu(x @ weights[0]) @ weights[1]
            return x + jax.lax.with_sharding_constraint(product, sharded("X", None)), None

        x = jax.lax.scan(jax.checkpoint(layer), x, (w_in, w_out))[0]
        return x.astype(jnp.float32).sum()

    weights = (sharded(None, "X", "Y"), sharded(None, "Y", "X"))
    step = jax.jit(jax.value_and_grad(loss, argnums=(1, 2)), out_shardings=(sharded(), weights))
    return step, (
        _array(mesh, (tokens, model), "X", None),
        _array(mesh, (layers, model, hidden), None, "X", "Y"),
        _array(mesh, (layers, hidden, model), None, "Y", "X"),
    )


def product(mesh: Mesh, *, rows: list[str], cols: list[str]) -> Built:
    """One product; rows of the one and columns of the other operand are split over these axes."""

    def sharded(*axes: tuple[str, ...]) -> jax.ShapeDtypeStruct:
        split = NamedSharding(mesh, P(*(axis or None for axis in axes)))
        return jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16, sharding=split)

    return jax.jit(jnp.matmul), (sharded(tuple(rows), ()), sharded((), tuple(cols)))


def resharded(mesh: Mesh) -> Built:
    """Two shardings of one array between which the partitioner knows no way but to gather all."""

    def move(x: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(
            x.reshape(48, 16, 128), NamedSharding(mesh, P("X", "Y", None))
        )
        there = NamedSharding(mesh, P("Y", ("X", "Z"), None))
        return jax.lax.with_sharding_constraint(jnp.sin(x), there)

    return jax.jit(move), (_array(mesh, (768, 128), None, None),)


def too_large(mesh: Mesh, rows: int) -> Built:
    """A result that no chip can hold: every device has all of it."""

    def outer(x: jax.Array) -> jax.Array:
        return jnp.sin(x) @ x.T

    whole = NamedSharding(mesh, P())
    return jax.jit(outer, out_shardings=whole), (_array(mesh, (rows, 1024)),)


def killed(mesh: Mesh) -> Built:
    """Dies as the compiler does when it meets a bug of its own."""
    del mesh
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGFPE)
    raise AssertionError("unreachable")


def endless(mesh: Mesh) -> Built:
    """Never comes back."""
    del mesh
    time.sleep(1000)
    raise AssertionError("unreachable")


def broken(mesh: Mesh) -> Built:
    """A program with a mistake of its own."""
    raise ValueError(f"no such axis in {tuple(mesh.shape)}")


def asks_where_it_runs(mesh: Mesh) -> Any:
    """What programs ask before they choose a kernel: the answers are those of the slice."""
    from jax.experimental import mesh_utils
    from jax.interpreters import pxla

    own = jax.make_mesh((2, 8), ("rows", "cols"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    told = {
        "devices": {
            device.platform for device in (*jax.devices(), *jax.local_devices(backend="tpu"))
        },
        "hosts": {device.platform for device in jax.devices("cpu")},
        "backend": jax.default_backend(),
        "count": (jax.device_count(), jax.local_device_count(), mesh.size, own.size),
        "count of the host": jax.device_count("cpu"),
        "tutorial": mesh_utils.create_device_mesh((4, 4)).shape,
        "by place": mesh_utils.create_device_mesh((4, 4), list(mesh.devices.flat)).shape,
        "old mesh": pxla.thread_resources.env.physical_mesh.axis_names,
    }
    assert told == {
        "devices": {"tpu"},
        "hosts": {"cpu"},
        "backend": "tpu",
        "count": (16,) * 4,
        "count of the host": len(jax.devices("cpu")),
        "tutorial": (4, 4),
        "by place": (4, 4),
        "old mesh": mesh.axis_names,
    }, told
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=NamedSharding(own, P("rows")))
    return jax.jit(lambda x: jax.lax.with_sharding_constraint(x + 1, P("cols"))), (x,)
