"""Runs routed experts on fake devices and compares with every expert on every token.

Run as a process of its own: `python moe_worker.py`. Prints one JSON object.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault(  # whoever takes times sets other flags first
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8"
    " --xla_backend_optimization_level=0",  # of machine code: compiling is most of the time here
)

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rooflight.models.spec import Mlp, Moe
from rooflight.program.moe.all_to_all import moe_all_to_all
from rooflight.program.moe.layer import Experts, moe_mlp, swiglu
from rooflight.program.moe.ragged import exchange, moe_ragged
from rooflight.program.moe.routing import Routed, route

Tree = Any  # a pytree of arrays
ExpertsOf: Any = Experts  # of numpy arrays, specs or shapes
RoutedOf: Any = Routed
N, D, F, E, K = 64, 16, 32, 8, 2
MOE = Moe(E, K, Mlp(F))
SPLIT = ExpertsOf(
    *(P("X", None, "Y"), P("X", "Y"), P("X", None, "Y")), *(P("X", "Y"), P("X"), P("X", "Y"))
)
Layer = Callable[[jax.Array, Routed, Experts], jax.Array]


def draw() -> tuple[Any, Any, Any]:
    """Tokens, router, and experts with every kind of weight and bias."""
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> Any:
        return (rng.normal(size=shape) / 2).astype(np.float32)

    weights = normal(E, D, F), normal(E, F, D), normal(E, D, F)
    biases = normal(E, F), normal(E, D), normal(E, F)
    return normal(N, D), normal(D, E), ExpertsOf(*weights, *biases)


def dense(x: jax.Array, routed: Routed, experts: Tree) -> jax.Array:
    """The oracle: all experts on all tokens, most of it times zero."""
    share = (
        jnp.zeros((len(x), E)).at[jnp.arange(len(x))[:, None], routed.experts].set(routed.weights)
    )
    gate = jnp.einsum("nd,edf->nef", x, experts.gate) + experts.gate_bias
    up = jnp.einsum("nd,edf->nef", x, experts.up) + experts.up_bias
    fed = jnp.einsum("nef,efd->ned", swiglu(gate, up), experts.down) + experts.down_bias
    return jnp.einsum("ned,ne->nd", fed, share)


def of_router(layer: Layer) -> Callable[..., jax.Array]:
    return lambda x, router, experts: layer(x, route(MOE, x @ router), experts)


def value_and_gradients(function: Callable[..., jax.Array]) -> Callable[..., Tree]:
    def loss(*arrays: Tree) -> tuple[jax.Array, jax.Array]:
        y = function(*arrays)
        return (y**2).sum(), y

    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))


def largest_error(found: Tree, wanted: Tree) -> float:
    errors = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(b).max(), found, wanted)
    return float(max(jax.tree.leaves(errors)))


LAYERS: dict[str, Layer] = {
    "capacity": lambda x, r, e: moe_all_to_all(
        x, r, e, axis="X", capacity=N // 4 * K, tensor_axis="Y"
    )[0],
    "capacity in chunks": lambda x, r, e: moe_all_to_all(
        x, r, e, axis="X", capacity=N // 4 * K // 4, chunks=4, tensor_axis="Y"
    )[0],
    "ragged in chunks": lambda x, r, e: moe_ragged(x, r, e, axis="X", chunks=2, tensor_axis="Y"),
}


def mapped(layer: Layer, split: Tree = SPLIT) -> Callable[..., jax.Array]:
    specs = (P("X"), P(), split)
    return jax.shard_map(of_router(layer), in_specs=specs, out_specs=P("X"))


def equal_layers() -> dict[str, float]:
    """Errors of values and of the gradients of tokens, router and experts; X=4, Y=2.

    The second router prefers one expert, so that one device gets most rows.
    """
    x, router, experts = draw()
    programs = {name: value_and_gradients(mapped(layer)) for name, layer in LAYERS.items()}
    plain = [value_and_gradients(of_router(layer)) for layer in (dense, moe_mlp)]
    errors: dict[str, float] = {}
    for name, preference in (("", 0), (", most to one", 9)):
        skewed = router + preference * (np.arange(E) == 5).astype(np.float32)
        held = (np.abs(x), skewed, experts)
        wanted, one = (jax.device_get(f(*jax.tree.map(jnp.asarray, held))) for f in plain)
        errors[f"one device{name}"] = largest_error(one, wanted)
        with jax.set_mesh(jax.make_mesh((4, 2), ("X", "Y"))):
            put = jax.tree.map(jax.device_put, held, (P("X"), P(), SPLIT))
            for layer, program in programs.items():
                found = jax.device_get(program(*put))
                errors[f"{layer}{name}"] = largest_error(found, wanted)
    return errors


def plain_experts() -> float:
    """Without gate and biases: two matmuls and an activation of one argument."""
    x, router, full = draw()
    experts = Experts(full.up, full.down)
    found = moe_mlp(
        jnp.asarray(x), routed := route(MOE, x @ router), experts, activate=lambda _, up: up**2
    )
    wanted = np.zeros_like(x)
    for token in range(N):
        for weight, e in zip(routed.weights[token], routed.experts[token], strict=True):
            wanted[token] += weight * ((x[token] @ full.up[e]) ** 2 @ full.down[e])
    return largest_error(np.asarray(found), wanted)


def dropped_choices() -> dict[str, Any]:
    """A capacity that is too small: what is dropped, counted by hand, and the rest still right."""
    x, router, experts = draw()
    capacity, ways = 3, 8
    routed = jax.device_get(route(MOE, jnp.asarray(x @ router)))
    kept = np.zeros((N, K), bool)
    for tokens in np.array_split(np.arange(N), ways):
        taken = np.zeros(E, int)
        for token in tokens:
            for choice, e in enumerate(routed.experts[token]):
                kept[token, choice] = taken[e] < capacity
                taken[e] += 1
    wanted = dense(jnp.asarray(x), Routed(routed.weights * kept, routed.experts), experts)
    split = jax.tree.map(lambda _: P("X"), experts)
    with jax.set_mesh(jax.make_mesh((ways,), ("X",))):
        put = jax.tree.map(
            jax.device_put, (x, routed, experts), (P("X"), RoutedOf(P("X"), P("X")), split)
        )
        layer = jax.shard_map(
            lambda x, r, e: moe_all_to_all(x, r, e, axis="X", capacity=capacity),
            in_specs=(P("X"), RoutedOf(P("X"), P("X")), split),
            out_specs=(P("X"), P()),
        )
        fed, dropped = jax.device_get(jax.jit(layer)(*put))
    error = largest_error(fed, np.asarray(wanted))
    return {"found": int(dropped), "wanted": int((~kept).sum()), "error": error}


def exchanged() -> bool:
    """Rows by the emulation against rows put together by hand, padding included."""
    rng, ways, rows, bound = np.random.default_rng(3), 4, 12, 40
    to = np.sort(rng.integers(0, ways, (ways, rows)) ** 2 % ways)
    values = rng.normal(size=(ways, rows, 3)).astype(np.float32)
    sizes = np.stack([np.bincount(t, minlength=ways) for t in to]).astype(np.int32)
    with jax.set_mesh(jax.make_mesh((ways,), ("X",), devices=jax.devices()[:ways])):
        move = jax.shard_map(
            lambda r, s: exchange(r[0], s[0], axis="X", bound=bound)[None],
            in_specs=P("X"),
            out_specs=P("X"),
        )
        found = jax.device_get(jax.jit(move)(*(jax.device_put(a, P("X")) for a in (values, sizes))))
    for me in range(ways):
        wanted = np.zeros((bound, 3), np.float32)
        arrived = np.concatenate([values[source][to[source] == me] for source in range(ways)])
        wanted[: len(arrived)] = arrived
        if not np.array_equal(found[me], wanted):
            return False
    return True


@functools.cache
def compare_layouts(ways: int, tokens: int, width: int, hidden: int) -> dict[str, Any]:
    """Both programs of one layer, left to the compiler and by explicit all-to-all: jitted, with
    arguments. Capacity is twice that of balanced tokens."""
    mesh = jax.make_mesh((ways,), ("X",), axis_types=(AxisType.Auto,), devices=jax.devices()[:ways])
    rng = np.random.default_rng(0)
    spec = ExpertsOf(P("X"), P("X"), P("X"))
    shapes = (
        (tokens, width),
        (width, E),
        ExpertsOf((E, width, hidden), (E, hidden, width), (E, width, hidden)),
    )
    places = jax.tree.map(lambda s: NamedSharding(mesh, s), (P("X"), P(), spec))
    arrays = jax.tree.map(
        lambda s, place: jax.device_put((rng.normal(size=s) / 8).astype(np.float32), place),
        *(shapes, places),
        is_leaf=lambda s: isinstance(s, tuple) and isinstance(s[0], int),
    )
    capacity = 2 * tokens * K // E

    def layer(axis: str | None, capacity: int) -> Callable[..., Any]:
        return lambda x, wr, e: moe_all_to_all(
            x, route(MOE, x @ wr), e, axis=axis, capacity=capacity
        )

    with jax.set_mesh(mesh):
        out = NamedSharding(mesh, P("X")), NamedSharding(mesh, P())
        auto = jax.jit(layer(None, capacity), out_shardings=out)
        explicit = jax.jit(
            jax.shard_map(
                layer("X", capacity // ways), in_specs=(P("X"), P(), spec), out_specs=(P("X"), P())
            )
        )
        return {
            "auto": auto.lower(*arrays).compile(),
            "explicit": explicit.lower(*arrays).compile(),
            "arrays": arrays,
        }


def held_rows(compiled: Any, width: int) -> float:
    """Temporary memory of a device as rows of D floats."""
    return compiled.memory_analysis().temp_size_in_bytes / (4 * width)


def naive_against_explicit() -> dict[str, Any]:
    """Outputs on 8 devices, and rows held at 2, 4, 8: all tokens the same, then those of each."""
    width = hidden = 64
    pair = compare_layouts(8, 4096, width, hidden)
    outputs = {name: jax.device_get(pair[name](*pair["arrays"])) for name in ("auto", "explicit")}
    rows: dict[str, dict[str, list[float]]] = {}
    for growth, tokens in (
        ("same tokens", {n: 4096 for n in (2, 4, 8)}),
        ("same tokens per device", {n: 512 * n for n in (2, 4, 8)}),
    ):
        pairs = [compare_layouts(n, t, width, hidden) for n, t in tokens.items()]
        rows[growth] = {
            name: [held_rows(p[name], width) for p in pairs] for name in ("auto", "explicit")
        }
    return {
        "error": largest_error(outputs["explicit"][0], outputs["auto"][0]),
        "dropped": [int(outputs[name][1]) for name in ("auto", "explicit")],
        "rows": rows,
    }


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    found = {
        "errors": equal_layers() | {"without gate": plain_experts()},
        "dropped": dropped_choices(),
        "exchanged": exchanged(),
        "naive": naive_against_explicit(),
    }
    print(json.dumps(found))
