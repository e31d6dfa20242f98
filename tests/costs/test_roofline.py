"""Roofline times: the book's worked numbers, exact bits, and what holds for every op."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.roofline import (
    Memory,
    OpTime,
    Roof,
    attention_intensity,
    batch_tokens,
    contraction_time,
    critical_batch,
    critical_contracting_dim,
    hiding_intensity,
    matmul_time,
    memory_bytes_per_s,
    moe_critical_batch,
    ridge_point,
    tile_intensity,
    vector_ridge_point,
    vector_time,
)
from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import ModelError, UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Chip

BF16, INT8, INT4, F32 = (DTYPES[name] for name in ("bf16", "int8", "int4", "f32"))
V5E = load_chip("v5e")
SIZE = st.integers(1, 20_000)


def chip_with(name: str, *, flops: float | None = None, hbm: float | None = None) -> Chip:
    """A catalog chip at the rounded rates of one edition of the book."""
    chip = load_chip(name)
    rates = chip.flops if flops is None else dict(chip.flops) | {"bf16": flops}
    return replace(chip, flops=rates, hbm_bytes_per_s=hbm or chip.hbm_bytes_per_s)


def plain_matmul(m: int, k: int, n: int, dtype: Dtype = BF16, *, chip: Chip = V5E) -> OpTime:
    return matmul_time(chip, m=m, k=k, n=n, lhs=dtype, rhs=dtype, out=dtype)


@pytest.mark.parametrize(
    ("name", "flops", "hbm", "tokens"),
    [
        ("v5e", 1.97e14, 8.2e11, 240.2439),
        ("h100", 9.89e14, 3.35e12, 295.2239),
        ("h100", 1e15, 3.35e12, 298.50746),
        ("v6e", 9.26e14, 1.64e12, 564.63415),
        ("b200", 2.25e15, 8e12, 281.25),
    ],
)
def test_bf16_critical_batch_is_the_ridge_point(
    name: str, flops: float, hbm: float, tokens: float
) -> None:
    chip = chip_with(name, flops=flops, hbm=hbm)
    assert math.isclose(ridge_point(chip, "bf16"), tokens, rel_tol=1e-6)
    batch = critical_batch(chip, weight=BF16, activation=BF16, compute="bf16")
    assert math.isclose(batch, tokens, rel_tol=1e-6)


def test_int8_weights_halve_the_batch_and_int8_flops_double_it_back() -> None:
    narrow = critical_batch(V5E, weight=INT8, activation=BF16, compute="bf16")
    fast = critical_batch(V5E, weight=INT8, activation=INT8, compute="int8")
    assert math.isclose(narrow, 120.12195, rel_tol=1e-6)
    assert math.isclose(fast, 240.2439, rel_tol=1e-6)


@pytest.mark.parametrize(("size", "tokens"), [(4096, 136.0857), (1024, 226.31484)])
def test_exact_crossover_of_bf16_activations_on_int8_weights(size: int, tokens: float) -> None:
    batch = critical_batch(V5E, weight=INT8, activation=BF16, compute="bf16", d=size, f=size)
    assert math.isclose(batch, tokens, rel_tol=1e-6)


@pytest.mark.parametrize(("memory", "tokens"), [("hbm", 262.70857), ("vmem", 11.092417)])
def test_exact_crossover_of_an_int8_matmul_out_of_hbm_and_vmem(
    memory: Memory, tokens: float
) -> None:
    chip = replace(V5E, hbm_bytes_per_s=8.1e11, vmem_bytes_per_s=22 * 8.1e11)
    batch = critical_batch(
        chip, weight=INT8, activation=INT8, compute="int8", d=4096, f=16384, memory=memory
    )
    assert math.isclose(batch, tokens, rel_tol=1e-6)


def test_weights_behind_pcie_need_tens_of_thousands_of_tokens() -> None:
    chip = replace(chip_with("v6e", flops=9.2e14), pcie_bytes_per_s=1.5e10)
    batch = critical_batch(chip, weight=BF16, activation=BF16, compute="bf16", memory="pcie")
    assert math.isclose(batch, 61333.333, rel_tol=1e-6)


def test_a_mixture_needs_experts_over_active_times_the_batch() -> None:
    assert moe_critical_batch(120, experts=256, active=8) == 3840


def test_two_chips_hide_their_partial_sums_from_the_books_width() -> None:
    width = critical_contracting_dim(V5E, chips=2, partial=BF16, compute="bf16", bytes_per_s=4.5e10)
    assert math.isclose(width, 8755.5556, rel_tol=1e-6)


def test_reducing_instead_of_gathering_pays_from_twice_the_ici_intensity() -> None:
    v5p = load_chip("v5p")
    alpha = hiding_intensity(v5p, "bf16", bytes_per_s=1.8e11)
    width = critical_contracting_dim(
        v5p, chips=1, partial=BF16, compute="bf16", bytes_per_s=1.8e11, passes=2
    )
    assert (alpha, width) == (2550, 5100)


@pytest.mark.parametrize(
    ("q_len", "kv_len", "group", "intensity"),
    [
        (4096, 4096, 8, 3640.8889),
        (1, 8192, 8, 7.9921951),
        (4096, 4096, 1, 2048),
        (1, 8192, 1, 0.99987794),
    ],
)
def test_attention_intensity_of_prefill_and_decode(
    q_len: int, kv_len: int, group: int, intensity: float
) -> None:
    found = attention_intensity(q_len=q_len, kv_len=kv_len, group=group)
    assert math.isclose(found, intensity, rel_tol=1e-7)


def test_tiles_dots_and_matvecs_have_the_books_intensities() -> None:
    assert tile_intensity(512, 512) == 256
    assert tile_intensity(512, 512, INT8) == 512
    assert math.isclose(plain_matmul(1, 1 << 20, 1).intensity, 0.5, rel_tol=1e-6)
    batched = matmul_time(V5E, batch=64, m=1, k=8192, n=8192, lhs=INT8, rhs=INT8, out=INT8)
    assert math.isclose(batched.intensity, 1.9995118, rel_tol=1e-7)


def test_fp16_matmuls_on_a_b200_are_bound_by_memory_then_by_flops() -> None:
    chip = chip_with("b200", flops=2.3e15, hbm=8e12)
    small, big = (plain_matmul(b, 4096, 8192, chip=chip) for b in (64, 512))
    assert (small.roofs[1].amount, small.binds) == (68_681_728, "HBM")
    assert math.isclose(small.lower_s, 8.585216e-06, rel_tol=1e-6)
    assert big.binds == "tensor core bf16"
    assert math.isclose(big.lower_s, 1.4939017e-05, rel_tol=1e-6)


def test_a_vector_add_is_bound_by_memory() -> None:
    chip = replace(load_chip("h100"), hbm_bytes_per_s=3.35e12, vector_flops=3.35e13)
    elements = 1 << 30
    op = vector_time(chip, flops=elements, bytes_moved=12 * elements)
    assert math.isclose(op.intensity, 1 / 12)
    assert (op.binds, op.utilisation, vector_ridge_point(chip)) == ("HBM", 0, 10)
    assert math.isclose(op.lower_s, 0.0038462394, rel_tol=1e-6)


def test_the_vector_ridge_of_v5p_counts_both_cores() -> None:
    chip = replace(load_chip("v5p"), vector_flops=2 * 7e12, hbm_bytes_per_s=2.8e12)
    assert vector_ridge_point(chip) == 5


def test_a_batch_is_counted_in_tokens() -> None:
    assert batch_tokens(sequences=512, seq_len=4096) == 2_097_152
    assert batch_tokens(sequences=512, seq_len=4096, chips=2048) == 1024


def test_no_overlap_costs_at_most_twice_full_overlap() -> None:
    rate = memory_bytes_per_s(V5E)
    op = contraction_time(V5E, flops=V5E.peak_flops("bf16"), bytes_moved=rate, compute="bf16")
    assert (op.lower_s, op.upper_s, op.utilisation) == (1, 2, 1)


@given(m=SIZE, k=SIZE, n=SIZE, dtype=st.sampled_from([BF16, INT8]))
def test_every_matmul_stays_under_the_roof_it_is_drawn_under(
    m: int, k: int, n: int, dtype: Dtype
) -> None:
    op = plain_matmul(m, k, n, dtype)
    reached = 2 * m * k * n / op.lower_s
    roof = min(V5E.peak_flops(dtype.name), memory_bytes_per_s(V5E) * op.intensity)
    assert math.isclose(reached, roof)
    assert op.lower_s <= op.upper_s <= 2 * op.lower_s
    assert math.isclose(op.utilisation, reached / V5E.peak_flops(dtype.name))


@given(m=SIZE, k=SIZE, n=SIZE)
def test_time_grows_with_every_dim_and_padding_never_helps(m: int, k: int, n: int) -> None:
    op = plain_matmul(m, k, n)
    for bigger in ((m + 1, k, n), (m, k + 1, n), (m, k, n + 1)):
        assert plain_matmul(*bigger).lower_s > op.lower_s
    padded = matmul_time(V5E, m=m, k=k, n=n, lhs=BF16, rhs=BF16, out=BF16, pad=True)
    assert padded.lower_s >= op.lower_s
    assert padded.utilisation <= op.utilisation
    assert padded.intensity == op.intensity


@given(
    d=st.integers(1024, 30_000),
    f=st.integers(1024, 30_000),
    weight=st.sampled_from([INT8, BF16]),
    out=st.sampled_from([BF16, F32]),
)
def test_at_the_exact_crossover_both_roofs_take_equally_long(
    d: int, f: int, weight: Dtype, out: Dtype
) -> None:
    batch = critical_batch(V5E, weight=weight, activation=BF16, out=out, compute="bf16", d=d, f=f)
    assert batch > critical_batch(V5E, weight=weight, activation=BF16, compute="bf16")
    nbytes = 2 * batch * d + weight.bits / 8 * d * f + out.bits / 8 * batch * f
    op = contraction_time(V5E, flops=2 * batch * d * f, bytes_moved=nbytes, compute="bf16")
    assert math.isclose(op.roofs[0].seconds, op.roofs[1].seconds)


def test_a_matmul_too_narrow_is_never_compute_bound() -> None:
    batch = critical_batch(V5E, weight=BF16, activation=BF16, compute="bf16", d=64, f=64)
    assert batch == math.inf
    assert plain_matmul(10**9, 64, 64).binds == "HBM"


def test_padding_fills_whole_tiles_of_the_matrix_unit() -> None:
    unit = V5E.matrix_unit
    assert unit is not None
    op = matmul_time(
        V5E, m=1, k=unit.rows + 1, n=1, lhs=BF16, rhs=BF16, out=BF16, memory="vmem", pad=True
    )
    sublanes = V5E.detail["vpu_sublanes"]
    assert op.roofs[0].amount == 2 * sublanes * 2 * unit.rows * unit.cols


def test_bytes_are_exact_to_the_bit() -> None:
    op = matmul_time(V5E, m=3, k=64, n=5, lhs=BF16, rhs=DTYPES["mxfp4"], out=F32, compute="bf16")
    assert op.roofs[1].amount == 3 * 64 * 2 + (64 * 5 * 4 + 10 * 8) // 8 + 3 * 5 * 4
    odd = matmul_time(V5E, m=1, k=1, n=3, lhs=INT4, rhs=INT4, out=INT4, compute="int8")
    assert odd.roofs[1].amount == 1 + 2 + 2


def test_the_wider_operand_sets_the_rate() -> None:
    mixed = matmul_time(V5E, m=8, k=8, n=8, lhs=BF16, rhs=INT8, out=BF16)
    assert mixed.roofs[0].name == "MXU bf16"
    assert plain_matmul(8, 8, 8, INT8).roofs[0].name == "MXU int8"


def test_a_utilisation_above_one_is_a_bug_of_the_model() -> None:
    with pytest.raises(ModelError, match="above 1"):
        OpTime((Roof("MXU bf16", 1.0, 1.0),), utilisation=1.01, intensity=1.0)
    with pytest.raises(ModelError, match="nan"):
        OpTime((Roof("MXU bf16", 1.0, 1.0),), utilisation=math.nan, intensity=1.0)


def test_a_rate_the_catalog_lacks_is_an_error_that_names_the_fact() -> None:
    bare = replace(V5E, vmem_bytes_per_s=None, vector_flops=None, matrix_unit=None)
    with pytest.raises(UsageError, match="vmem_bytes_per_s"):
        ridge_point(bare, "bf16", "vmem")
    with pytest.raises(UsageError, match="vector_flops"):
        vector_time(bare, flops=1, bytes_moved=1)
    with pytest.raises(UsageError, match="matrix_unit"):
        matmul_time(bare, m=1, k=1, n=1, lhs=BF16, rhs=BF16, out=BF16, pad=True)


def test_half_a_shape_is_refused() -> None:
    with pytest.raises(UsageError, match="both d and f"):
        critical_batch(V5E, weight=BF16, activation=BF16, compute="bf16", d=4096)
