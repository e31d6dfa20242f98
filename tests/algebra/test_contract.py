"""Contractions: the book's four cases, the collectives of each parallelism, reverse mode."""

import pytest

from rooflight.algebra.autodiff import backward
from rooflight.algebra.contract import Strategy, strategies
from rooflight.algebra.notation import Contraction, Tensor, parse_contraction, parse_tensor
from rooflight.algebra.shapes import local_shape
from rooflight.errors import RooflightError, ShardingError


def plans(text: str) -> set[tuple[str, ...]]:
    """Each strategy as its collectives, such as `AllGather_X B`."""
    return {
        tuple(str(s).split("[")[0] for s in strategy.collectives)
        for strategy in strategies(parse_contraction(text))
    }


def test_case_1_needs_no_communication() -> None:
    assert plans("A[I_X,J] * B[J,K_Y] -> C[I_X,K_Y]") == {()}


def test_case_2_gathers_the_sharded_operand_or_sums_afterwards() -> None:
    assert plans("A[I,J_X] * B[J,K] -> C[I,K]") == {("AllGather_X A",), ("AllReduce_X C",)}


def test_case_3_sums_afterwards_or_gathers_both() -> None:
    assert plans("A[I,J_X] * B[J_X,K] -> C[I,K]") == {
        ("AllReduce_X C",),
        ("AllGather_X A", "AllGather_X B"),
    }


def test_case_3_with_a_split_result_scatters_the_sum() -> None:
    assert ("ReduceScatter_{X,K} C",) in plans("A[I,J_X] * B[J_X,K] -> C[I,K_X]")


def test_case_4_gathers_either_operand() -> None:
    found = plans("A[I_X,J] * B[J,K_X] -> C[I,K]")
    assert {("AllGather_X B", "AllGather_X C"), ("AllGather_X A", "AllGather_X C")} <= found


def test_a_result_can_be_gathered_before_or_after() -> None:
    assert plans("A[I_X,J] * B[J,K] -> C[I,K]") == {("AllGather_X A",), ("AllGather_X C",)}


@pytest.mark.parametrize(
    ("forward", "gradient", "collectives"),
    [
        # data parallelism: the weight gradient is all-reduced over the batch axis
        ("x[B_X,D] * W[D,F] -> y[B_X,F]", 1, ("AllReduce_X dW",)),
        # FSDP: it is reduce-scattered to the weight's own sharding
        ("x[B_X,D] * W[D_X,F] -> y[B_X,F]", 1, ("ReduceScatter_{X,D} dW",)),
        # tensor parallelism: the activation gradient is summed over the tensor axis
        ("x[B,D] * W[D,F_Y] -> y[B,F_Y]", 0, ("AllReduce_Y dx",)),
        # ... and scattered when the sequence is sharded over it
        ("x[B_Y,D] * W[D,F_Y] -> y[B,F_Y]", 0, ("ReduceScatter_{Y,B} dx",)),
        # the row-parallel half needs nothing backward
        ("x[B,F_Y] * W[F_Y,D] -> y[B,D]", 1, ()),
    ],
)
def test_the_collectives_of_each_parallelism_fall_out_of_reverse_mode(
    forward: str, gradient: int, collectives: tuple[str, ...]
) -> None:
    back = backward(parse_contraction(forward))[gradient]
    assert collectives in plans(str(back))


def test_the_gradient_of_a_pending_result_is_replicated() -> None:
    (left, _) = backward(parse_contraction("A[I,J_X] * B[J_X,K] -> C[I,K]{U_X}"))
    assert str(left) == "dC[I,K] * B[J_X,K] -> dA[I,J_X]"


def test_a_pending_input_may_be_carried_through_the_product() -> None:
    found = plans("A[I,J]{U_X} * B[J,K] -> C[I,K]")
    assert found == {("AllReduce_X A",), ("AllReduce_X C",)}


def test_two_pending_inputs_are_never_multiplied() -> None:
    for strategy in strategies(parse_contraction("A[I,J]{U_X} * B[J,K]{U_X} -> C[I,K]")):
        einsum = next(s for s in strategy.steps if s.op == "einsum")
        assert sum("X" in t.unreduced for t in einsum.inputs) <= 1


def test_a_result_that_cannot_pend_is_refused() -> None:
    with pytest.raises(ShardingError, match="cannot be unreduced over X"):
        strategies(parse_contraction("A[I] * B[K] -> C[I,K]{U_X}"))


def _is_sound(strategy: Strategy) -> bool:
    """Operands agree on every shared dim, and the product pends over the summed axes."""
    einsum = next(s for s in strategy.steps if s.op == "einsum")
    dims = {d for t in einsum.inputs for d in t.dims}
    agree = all(len({t.axes_of(d) for t in einsum.inputs if d in t.dims}) == 1 for d in dims)
    axes = {d: next(t.axes_of(d) for t in einsum.inputs if d in t.dims) for d in dims}
    summed = {a for d in dims if d not in einsum.output.dims for a in axes[d]}
    carried = {a for t in einsum.inputs for a in t.unreduced}
    return agree and set(einsum.output.unreduced) == summed | carried


@pytest.mark.parametrize(
    "text",
    [
        "A[B_X,D_Y] * W[D_X,F_Y] -> C[B_X,F_Y]",
        "Q[B_X,T,N_Y,H] * K[B_X,S,N_Y,H] -> L[B_X,T,S,N_Y]",
        "x[E_X,T,D] * W[E_X,D,F_Y] -> y[E_X,T,F_Y]",
        "A[I_XY,J] * B[J_YX,K] * D[K,I] -> C[I_Y,K_X]",
        "A[I,J_X]{U_Y} * B[J,K_Z] -> C[I_Z,K]{U_X}",
    ],
)
def test_every_strategy_is_sound_and_listed_once(text: str) -> None:
    found = strategies(parse_contraction(text))
    assert all(_is_sound(s) for s in found)
    assert len({s.steps for s in found}) == len(found)


def test_one_derivation_serves_many_sizes() -> None:
    strategy = strategies(parse_contraction("A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]"))[0]
    gather = strategy.collectives[0]
    for x, y in ((2, 2), (16, 4), (64, 8)):
        sizes = {"X": x, "Y": y}
        assert gather.elements({"I": 64, "J": 128, "K": 256}, sizes) == 128 * 256 / y


def test_local_shapes_refuse_what_does_not_divide() -> None:
    with pytest.raises(ShardingError, match="does not split 4 ways") as caught:
        local_shape(parse_tensor("A[I_X]"), {"I": 10}, {"X": 4})
    assert "pad I to 12" in caught.value.hint


def test_a_missing_size_is_named() -> None:
    with pytest.raises(RooflightError, match="unknown dim 'J'"):
        local_shape(parse_tensor("A[I,J]"), {"I": 8}, {})


def test_the_same_tensor_twice_is_two_operands() -> None:
    tensor = Tensor("A", ("I", "J"), ((), ("X",)))
    contraction = Contraction((tensor, tensor), Tensor("C", ("I",), ((),)))
    assert {s.steps[-1].op for s in strategies(contraction)} == {"all_reduce", "einsum"}
