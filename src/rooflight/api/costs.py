"""Seconds of one thing: a matmul on a chip, a collective, a sharded matmul with its collectives."""

from collections.abc import Mapping, Sequence

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import Contraction, parse_contraction
from rooflight.api.values import Count, slice_of
from rooflight.costs.choose import Choice, choose
from rooflight.costs.network import CollectiveKind, NetworkTime, collective_time
from rooflight.costs.roofline import Memory, OpTime, matmul_time
from rooflight.dtypes import parse_dtype
from rooflight.hardware.mesh import Mesh, axes_of, mesh_of
from rooflight.hardware.slice import Slice
from rooflight.units import parse_count


def matmul(
    contraction: str | Contraction,
    *,
    on: str | Slice,
    mesh: str | Mesh | None = None,
    dims: Mapping[str, int],
    dtype: str = "bf16",
) -> Choice:
    """The fastest way to a sharded matmul, and the others, each with the time of every step.

    >>> sizes = {"I": 8192, "J": 8192, "K": 32768}
    >>> found = matmul("A[I,J_X] * B[J_X,K] -> C[I,K]", on="v5e:4x4", mesh="X=4,Y=4", dims=sizes)
    >>> [step.op for step in found.best.strategy.steps]
    ['einsum', 'all_reduce']
    """
    placed = mesh if isinstance(mesh, Mesh) else mesh_of(mesh, slice_of(on))
    asked = parse_contraction(contraction) if isinstance(contraction, str) else contraction
    found = strategies(asked, placed.axes)
    return choose(found, dims=dims, mesh=placed, dtype=parse_dtype(dtype))


def collective(
    kind: CollectiveKind,
    nbytes: Count,
    *,
    on: str | Slice,
    mesh: str | Mesh | None = None,
    axes: str | Sequence[str] | None = None,
    in_network_reduction: bool = False,
) -> NetworkTime:
    """Seconds of a collective of so many bytes over some axes of a mesh, all if left out.

    >>> time = collective("all_gather", "34M", on="v5e:4x4", mesh="X=4,Y=4", axes="X")
    >>> round(time.expected_s * 1e6)
    570
    """
    placed = mesh if isinstance(mesh, Mesh) else mesh_of(mesh, slice_of(on))
    over = axes_of(axes, placed) if axes is None or isinstance(axes, str) else axes
    return collective_time(
        kind,
        parse_count(str(nbytes), what="nbytes"),
        placed.group(list(over)),
        in_network_reduction=in_network_reduction,
    )


def roofline(
    m: int,
    k: int,
    n: int,
    *,
    on: str | Slice,
    dtype: str = "bf16",
    memory: Memory = "hbm",
    pad: bool = False,
) -> OpTime:
    """Seconds of a matmul of (m, k) and (k, n) on one chip, and the roof that binds it.

    >>> roofline(8, 4096, 4096, on="v5e").binds
    'HBM'
    """
    kind, chip = parse_dtype(dtype), slice_of(on).chip
    return matmul_time(chip, m=m, k=k, n=n, lhs=kind, rhs=kind, out=kind, memory=memory, pad=pad)
