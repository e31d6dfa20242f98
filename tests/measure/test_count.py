# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""FLOPs and bytes of a function: counted by hand, and by XLA where it can count."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from rooflight.measure.microbench.count import count  # noqa: E402


def counted(function: Any, *shapes: tuple[int, ...]) -> Any:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return count(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_a_matmul_is_two_flops_for_each_term() -> None:
    found = counted(jnp.matmul, (3, 4), (4, 5))
    assert (found.matmul_flops, found.other_flops) == (2 * 3 * 4 * 5, 0)
    assert found.most_bytes == 4 * (3 * 4 + 4 * 5 + 3 * 5)


def test_a_scan_counts_as_often_as_it_goes_round() -> None:
    def layers(x: Any, weights: Any) -> Any:
        return lax.scan(lambda x, w: (x @ w, None), x, weights)[0]

    assert counted(layers, (8, 16), (6, 16, 16)).matmul_flops == 6 * 2 * 8 * 16 * 16


def test_functions_within_functions_count_once_each() -> None:
    step = jax.jit(jax.grad(lambda w, x: jax.checkpoint(jnp.matmul)(x, w).sum()))
    # The matmul is not recomputed: only its operands are needed for the gradient.
    assert counted(step, (16, 16), (8, 16)).matmul_flops % (2 * 8 * 16 * 16) == 0


def test_the_dearer_branch_counts() -> None:
    def either(x: Any, w: Any) -> Any:
        return lax.cond(x.sum() > 0, lambda: x @ w, lambda: (x @ w) @ w)

    assert counted(either, (8, 8), (8, 8)).matmul_flops == 2 * 2 * 8**3


def test_a_loop_of_unknown_length_is_said_to_be_one() -> None:
    def search(x: Any) -> Any:
        return lax.while_loop(lambda y: y.sum() < 10, lambda y: y @ y, x)

    found = counted(search, (4, 4))
    assert found.loops_of_unknown_length == 1
    assert found.matmul_flops == 2 * 4**3


def test_matmuls_are_those_that_xla_counts() -> None:
    def block(x: Any, w: Any, v: Any) -> Any:
        return jnp.einsum("bf,fd->bd", jnp.einsum("bd,df->bf", x, w), v)

    shapes = ((32, 64), (64, 256), (256, 64))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    xla = jax.jit(block).lower(*arguments).compile().cost_analysis()["flops"]
    assert counted(block, *shapes).matmul_flops == pytest.approx(xla, rel=1e-3)
