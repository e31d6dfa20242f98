"""The two rings under every collective matmul: blocks that arrive, and sums that depart.

    arrivals:  for each source i: x_i                       AllGather_X of x, a block at a time
    departures: sum_i part_i(j) on each owner j             ReduceScatter_X of part, likewise

One way, a block takes n-1 steps around. Both ways, it goes left and right at once and takes
floor(n/2) steps; with n even the far block comes half from each side. The second is the transpose
of the first: what took s steps from i to j to be read takes s steps from j to i to be summed.
No step needs what is computed from an earlier one, so matmuls run while blocks travel. The loop
is unrolled: n is known, and the compiler overlaps what it sees side by side.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import lax


def arrivals(x: jax.Array, *, axis: str, two_way: bool) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Every device's block and whose it is, the own one first."""
    n, me = lax.axis_size(axis), lax.axis_index(axis)
    right = left = x
    yield me, x
    for step in range(1, _steps(n, two_way) + 1):
        right = _shift(right, axis, 1)
        yield (me - step) % n, right
        if two_way:
            left = _shift(left, axis, -1)
            yield (me + step) % n, left
    if two_way and n % 2 == 0:
        half = x.shape[0] // 2
        ends = _shift(right[:half], axis, 1), _shift(left[half:], axis, -1)
        yield (me + n // 2) % n, jnp.concatenate(ends)


def departures(part: Callable[[jax.Array], jax.Array], *, axis: str, two_way: bool) -> jax.Array:
    """The sum over all devices of `part(me)`, where `part(j)` is this device's term for owner j."""
    n, me = lax.axis_size(axis), lax.axis_index(axis)
    steps = _steps(n, two_way)
    right, left = jnp.zeros(()), jnp.zeros(())  # sums on their way to owners right and left of here
    if two_way and n % 2 == 0:
        far = part((me + n // 2) % n)
        half, rest = far.shape[0] // 2, far.shape[0] - far.shape[0] // 2
        right = _pad(_shift(far[:half], axis, 1), (0, rest))
        left = _pad(_shift(far[half:], axis, -1), (half, 0))
    for step in range(steps, 0, -1):
        right = _shift(right + part((me + step) % n), axis, 1)
        if two_way:
            left = _shift(left + part((me - step) % n), axis, -1)
    return part(me) + right + left


def _steps(n: int, two_way: bool) -> int:
    """Steps of whole blocks; both ways with n even, one step of halves comes on top."""
    return (n - 1) // 2 if two_way else n - 1


def _shift(x: jax.Array, axis: str, by: int) -> jax.Array:
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + by) % n) for i in range(n)])


def _pad(x: jax.Array, rows: tuple[int, int]) -> jax.Array:
    return jnp.pad(x, (rows, *((0, 0),) * (x.ndim - 1)))
