"""Tokens sent to their experts in chunks, so that matmuls hide the exchange.

send 0 | send 1, use 0 | send 2, use 1 | ... | use n-1
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rooflight.errors import UsageError

Tree = Any  # a pytree of arrays: jax has no type for it


def in_chunks(
    chunks: int, tokens: Sequence[jax.Array], send: Callable[..., Tree], use: Callable[[Tree], Tree]
) -> Tree:
    """`use(send(piece))` of each piece of the tokens, joined in dim 0; what has none is listed.

    Each piece is sent before the one ahead of it is used: nothing of the two depends on the
    other, so that the exchange of one runs behind the matmuls of the other.
    """
    if tokens[0].shape[0] % chunks:
        raise UsageError(
            f"{tokens[0].shape[0]} tokens per device do not split into {chunks} chunks",
            hint="choose a number of chunks that divides the tokens of a device",
        )
    pieces = list(zip(*(jnp.split(a, chunks) for a in tokens), strict=True))
    ahead, done = send(*pieces[0]), list[Tree]()
    for piece in pieces[1:]:
        here, ahead = ahead, send(*piece)
        done.append(use(here))
    done.append(use(ahead))
    return jax.tree.map(lambda *parts: jnp.concatenate([jnp.atleast_1d(p) for p in parts]), *done)
