"""Reverse mode: the backward contractions of a forward one, with the gradients brought home.

For C = A.B the chain rule gives dA = dC.B and dB = A.dC. Each gradient must arrive in its
tensor's own sharding, so the gradient all-reduce of data parallelism and the reduce-scatter of
FSDP need no rule of their own: they are what `strategies` derives for these contractions.
"""

from dataclasses import replace

from rooflight.algebra.notation import Contraction, Tensor


def gradient_of(tensor: Tensor) -> Tensor:
    """The gradient of a tensor in its own sharding.

    A tensor pending over an axis is a sum of terms; each term has the whole gradient, so the
    gradient is replicated over that axis.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> str(gradient_of(parse_tensor("A[I_X,J]{U_Y}")))
    'dA[I_X,J]'
    """
    return replace(tensor, name=f"d{tensor.name}", unreduced=())


def backward(contraction: Contraction) -> tuple[Contraction, ...]:
    """One contraction for the gradient of each operand, in order.

    >>> from rooflight.algebra.notation import parse_contraction
    >>> for c in backward(parse_contraction("A[B_X,D] * W[D,F_Y] -> C[B_X,F_Y]")):
    ...     print(c)
    dC[B_X,F_Y] * W[D,F_Y] -> dA[B_X,D]
    A[B_X,D] * dC[B_X,F_Y] -> dW[D,F_Y]
    """
    cotangent = gradient_of(contraction.result)
    operands = contraction.operands
    return tuple(
        Contraction((*operands[:i], cotangent, *operands[i + 1 :]), gradient_of(operand))
        for i, operand in enumerate(operands)
    )
