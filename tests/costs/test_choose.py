"""The choice between strategies: bounds, books and losers."""

import pytest

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.costs.choose import Choice, choose
from rooflight.costs.choose import pick as pick_best
from rooflight.dtypes import DTYPES
from rooflight.errors import ShardingError
from rooflight.hardware.mesh import parse_mesh

BF16 = DTYPES["bf16"]


def pick(text: str, on: str, mesh: str, **dims: int) -> Choice:
    placed = parse_mesh(mesh, on=on)
    found = strategies(parse_contraction(text), placed.axes)
    return choose(found, dims=dims, mesh=placed, dtype=BF16)


LARGE = {"B": 8192, "D": 8192, "F": 32768}
FSDP = "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]"


def test_the_losers_keep_their_price_and_come_in_order() -> None:
    choice = pick("A[B_X,D_Y] * W[D_X,F_Y] -> C[B_X,F_Y]", "v5e:4x4", "X=4,Y=4", **LARGE)
    times = [p.expected_s for p in choice.losers]
    assert len(times) > 1 and times == sorted(times)
    assert choice.losers[0].summary in choice.because


def test_a_faster_reroute_is_named_but_not_taken() -> None:
    """With many tokens it pays to gather weights and exchange results: another layout."""
    choice = pick("x[B_Y,D] * W[D,F_Y] -> h[B,F_Y]", "v5e:4x4", "X=4,Y=4", B=2**20, D=8192, F=1024)
    faster = choice.losers[0]
    assert faster.expected_s < choice.best.expected_s
    assert faster.strategy.reroutes > choice.best.strategy.reroutes == 0
    assert "XLA seldom does unless told" in choice.because


@pytest.mark.parametrize(
    "text", ["A[B_X,D_Y] * W[D_X,F_Y] -> C[B_X,F_Y]", "A[B,D_X] * W[D,F] -> C[B,F]"]
)
def test_no_strategy_with_as_few_reroutes_is_faster(text: str) -> None:
    choice = pick(text, "v5e:4x4", "X=4,Y=4", **LARGE)
    for loser in choice.losers:
        more = loser.strategy.reroutes > choice.best.strategy.reroutes
        assert more or loser.expected_s >= choice.best.expected_s


@pytest.mark.parametrize("tokens", [16, 1024, 65536])
def test_the_bounds_bracket_the_expectation(tokens: int) -> None:
    choice = pick(FSDP, "v5p:4x4x4", "X=16,Y=4", I=tokens, J=8192, K=32768)
    for price in (choice.best, *choice.losers):
        assert price.lower_s <= price.expected_s * (1 + 1e-12)
        assert price.expected_s <= price.upper_s * (1 + 1e-12)


def test_a_gather_streams_through_the_product_and_an_all_reduce_waits() -> None:
    gather = pick("A[I,J] * B[J,K_X] -> C[I,K]", "v5e:16x16", "X=16,Y=16", I=4096, J=4096, K=4096)
    prices = {p.summary: p for p in (gather.best, *gather.losers)}
    streamed = prices["gather B over X"]
    assert streamed.expected_s == max(streamed.local_s, streamed.network_s)
    reduced = pick(
        "A[I,J_X] * B[J_X,K] -> C[I,K]", "v5e:16x16", "X=16,Y=16", I=4096, J=4096, K=4096
    )
    prices = {p.summary: p for p in (reduced.best, *reduced.losers)}
    waits = prices["all-reduce C over X"]
    assert waits.expected_s == pytest.approx(waits.local_s + waits.network_s)


@pytest.mark.parametrize(("tokens", "winner"), [(128, "all-reduce C"), (65536, "gather B")])
def test_exercise_3_4_flips_with_the_batch(tokens: int, winner: str) -> None:
    """Summing partial matmuls wins while 2 * tokens < D; gathering the weights wins beyond."""
    text = "A[I,J] * B[J_X,K] -> C[I,K]"
    choice = pick(text, "v5p:4x4x4", "X=4,Y=4,Z=4", I=tokens, J=4096, K=16384)
    assert choice.best.summary.startswith(winner)


def test_no_collective_is_said_to_be_none() -> None:
    choice = pick("A[I_X,J] * B[J,K_Y] -> C[I_X,K_Y]", "v5e:4x4", "X=4,Y=4", I=64, J=64, K=64)
    assert choice.because == "no collective is needed"
    assert choice.best.network_bytes == 0


def test_narrow_dtypes_move_fewer_bytes() -> None:
    mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    found = strategies(parse_contraction(FSDP))
    dims = {"I": 8192, "J": 8192, "K": 32768}
    int8 = choose(found, dims=dims, mesh=mesh, dtype=DTYPES["int8"]).best
    bf16 = choose(found, dims=dims, mesh=mesh, dtype=BF16).best
    assert int8.network_bytes * 2 == bf16.network_bytes


def test_gpus_are_priced_by_the_same_call() -> None:
    choice = pick(FSDP, "h100:8x4", "X=4,Y=8", I=8192, J=8192, K=32768)
    assert choice.best.steps[0].binds == "leaf bandwidth"


def test_a_strategy_that_would_cut_a_block_in_two_is_not_considered() -> None:
    """G = 2 cannot take X = 4, so moving X there is no alternative; the others are."""
    text = "x[B_X,D] * W[D_X,G,F] -> y[B_X,G,F]"
    choice = pick(text, "v5e:4x4", "X=4,Y=4", B=64, D=64, G=2, F=64)
    for priced in (choice.best, *choice.losers):
        for part in priced.steps:
            assert part.step.output.axes_of("G") == ()


def test_what_was_asked_for_must_divide() -> None:
    with pytest.raises(ShardingError, match="dim B=6 does not split 4 ways"):
        pick("x[B_X,D] * W[D,F] -> y[B_X,F]", "v5e:4x4", "X=4,Y=4", B=6, D=8, F=8)


@pytest.mark.parametrize("tokens", [64, 8192, 2**20])
def test_pick_is_the_best_of_choose(tokens: int) -> None:
    mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    found = strategies(parse_contraction("A[B_X,D_Y] * W[D_X,F_Y] -> C[B_X,F_Y]"), mesh.axes)
    dims = {"B": tokens, "D": 2048, "F": 8192}
    chosen = choose(found, dims=dims, mesh=mesh, dtype=BF16).best
    assert pick_best(found, dims=dims, mesh=mesh, dtype=BF16) == chosen
