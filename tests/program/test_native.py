"""Foreign functions of this CPU: made by a real compiler, and against what XLA makes."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from rooflight.algebra.notation import parse_contraction
from rooflight.models.graph.ops import Mask
from rooflight.program.attention.tile import How, TileState
from rooflight.program.cpu import load as native
from rooflight.program.cpu.matmuls import few_rows, few_rows_can
from rooflight.program.matmuls import subscripts
from rooflight.program.paged.attend import attend_by_row, attend_natively, native_can, read_block
from rooflight.program.paged.blocks import Blocks, PagedBatch
from rooflight.program.shardings import device_mesh

SIZE, TABLE, LAYERS, NUM_BLOCKS = 4, 5, 2, 11
Case = tuple[jax.Array, jax.Array, Blocks]


@pytest.fixture(autouse=True, scope="module")
def made() -> None:
    assert native.has_native(), "this machine has no C++ compiler"


def case(
    seed: int, *, rows: int, tokens: int, heads: tuple[int, int, int], dtype: Any = jnp.float32
) -> Case:
    """Rows of any length at any blocks, some not here, and one row without a sequence."""
    random = np.random.default_rng(seed)
    kv_heads, groups, width = heads
    q = random.standard_normal((rows, tokens, kv_heads, groups, width), np.float32)
    pages = random.standard_normal((LAYERS, NUM_BLOCKS, SIZE, 2 * kv_heads, width), np.float32)
    lengths = random.integers(0, tokens + 1, rows)
    lengths[0] = 0
    starts = random.integers(0, SIZE * TABLE - tokens + 1, rows)
    ids = random.integers(0, NUM_BLOCKS + 1, (rows, TABLE))  # the last is of another device
    where = PagedBatch(*(jnp.asarray(x, jnp.int32) for x in (starts, lengths, ids)))
    blocks = Blocks(where, where.tables, jnp.int32(seed % LAYERS), NUM_BLOCKS, SIZE)
    return jnp.asarray(q), jnp.asarray(pages, dtype), blocks


def by_loop(q: jax.Array, pages: jax.Array, blocks: Blocks, how: How) -> TileState:
    def load(pages: dict[str, jax.Array], block: jax.Array) -> tuple[jax.Array, jax.Array]:
        both = read_block(pages, "kv", blocks.layer, block, q.dtype)
        return both[:, 0::2], both[:, 1::2]

    return attend_by_row(q, {"kv": pages}, blocks, how, load)


def real(state: TileState, blocks: Blocks, tokens: int) -> list[np.ndarray[Any, Any]]:
    """Sum and mix of the queries that are no padding; the max of no keys is anything."""
    is_real = np.arange(tokens) < np.asarray(blocks.rows.lengths)[:, None]
    total = np.asarray(state.sum)
    out = np.asarray(state.out) / np.where(total == 0, 1, total)[..., None]
    return [np.asarray(state.max)[is_real], total[is_real], out[is_real]]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    tokens=st.sampled_from([1, 3, 8]),
    heads=st.sampled_from([(2, 2, 16), (1, 3, 24), (3, 1, 7), (2, 4, 128)]),
    window=st.sampled_from([None, 1, 3, 9]),
    softcap=st.sampled_from([None, 5.0]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
)
@example(0, 3, 8, (2, 2, 16), None, None, jnp.float32)
def test_attention_is_that_of_the_loop(
    seed: int,
    rows: int,
    tokens: int,
    heads: tuple[int, int, int],
    window: int | None,
    softcap: float | None,
    dtype: Any,
) -> None:
    q, pages, blocks = case(seed, rows=rows, tokens=tokens, heads=heads, dtype=dtype)
    how = How(Mask(window), 0.3, softcap=softcap)
    expected = real(by_loop(q, pages, blocks, how), blocks, tokens)
    found = real(attend_natively(q, pages, blocks, how), blocks, tokens)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_a_row_finds_the_same_alone_and_beside_others() -> None:
    """To the bit, whichever thread takes it and whatever else is asked."""
    q, pages, blocks = case(1, rows=64, tokens=1, heads=(2, 2, 64))
    how = How(Mask(None), 0.1)
    together = attend_natively(q, pages, blocks, how)
    for row in (1, 17, 63):
        alone = PagedBatch(*(x[row : row + 1] for x in blocks.rows))
        found = attend_natively(
            q[row : row + 1], pages, blocks._replace(rows=alone, ids=alone.tables), how
        )
        for ours, theirs in zip(found, together, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[row])


def test_many_calls_at_once_end() -> None:
    """More calls than threads, each of which shares its work with the others' threads."""
    q, pages, blocks = case(2, rows=8, tokens=1, heads=(2, 2, 32))
    how = How(Mask(None), 0.1)

    @jax.jit
    def several(q: jax.Array) -> list[jax.Array]:
        return [attend_natively(q * i, pages, blocks, how).sum for i in range(24)]

    first = several(q)
    for _ in range(20):
        for ours, theirs in zip(several(q), first, strict=True):
            np.testing.assert_array_equal(ours, theirs)


MATMULS = {
    "x[B,D] * W[D,F] -> y[B,F]": True,
    "x[B,T,D] * W[D,K,G,H] -> q[B,T,K,G,H]": True,
    "m[B,T,K,H] * W[K,H,D] -> y[B,T,D]": True,
    "h[B,T,D] * W[V,D] -> logits[B,T,V]": False,  # the weight lies the other way round
    "m[E,C,D] * W[E,D,F] -> y[E,C,F]": False,  # a matrix for each expert
}


@settings(max_examples=30)
@given(
    text=st.sampled_from([text for text, can in MATMULS.items() if can]),
    rows=st.integers(1, 32),
    sizes=st.lists(st.integers(1, 40), min_size=6, max_size=6),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
)
@example("x[B,D] * W[D,F] -> y[B,F]", 32, [1, 512, 1, 1, 1408, 1], 0, jnp.float32)
@example("x[B,D] * W[D,F] -> y[B,F]", 1, [1, 37, 1, 1, 301, 1], 0, jnp.bfloat16)
def test_a_product_of_a_few_rows_is_that_of_numpy(
    text: str, rows: int, sizes: list[int], seed: int, dtype: Any
) -> None:
    contraction, random = parse_contraction(text), np.random.default_rng(seed)
    names = dict(zip("TDKGFH", sizes, strict=True)) | {"B": rows, "T": 1}
    x, w = (
        jnp.asarray(random.standard_normal([names[d] for d in t.dims], np.float32), dtype)
        for t in contraction.operands
    )
    with jax.set_mesh(device_mesh({"X": 1})):
        assert few_rows_can(contraction, x, w)
        found = few_rows(contraction, x, w)
    assert found.dtype == dtype
    expected = np.einsum(subscripts(contraction), *(np.asarray(a, np.float64) for a in (x, w)))
    depth, rounding = max(1, x.size // rows), float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(
        np.asarray(found, np.float64), expected, rtol=1e-5 + rounding, atol=1e-6 * depth
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_of_a_product_is_the_same_alone_and_beside_others(dtype: Any) -> None:
    random = np.random.default_rng(3)
    x = jnp.asarray(random.standard_normal((32, 77), np.float32), dtype)
    w = jnp.asarray(random.standard_normal((77, 301), np.float32), dtype)
    product = parse_contraction("x[B,D] * W[D,F] -> y[B,F]")
    with jax.set_mesh(device_mesh({"X": 1})):
        together = np.asarray(few_rows(product, x, w))
        for rows in range(1, 32):
            some = np.asarray(few_rows(product, x[-rows:], w))
            assert np.array_equal(some, together[-rows:])


def test_stored_numbers_are_the_nearest() -> None:
    """A product with one is the rounding of a sum: to the bit that of jax, also halfway."""
    sums = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    bits = sums.view(np.uint32)
    bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000  # halfway between two
    parts = [jnp.asarray(p) for p in _two_parts(sums)]
    x = jnp.ones((1, 2), jnp.bfloat16)
    with jax.set_mesh(device_mesh({"X": 1})):
        found = few_rows(parse_contraction("x[B,D] * W[D,F] -> y[B,F]"), x, jnp.stack(parts))
    exact = sum(np.asarray(p, np.float32) for p in parts)
    np.testing.assert_array_equal(found[0], jnp.asarray(exact, jnp.bfloat16))


def _two_parts(values: Any) -> tuple[Any, Any]:
    """Two numbers of bf16 whose sum is nearly each value, and a float to the bit."""
    high = jnp.asarray(values, jnp.bfloat16)
    return high, jnp.asarray(values - np.asarray(high, np.float32), jnp.bfloat16)


@pytest.mark.parametrize("text", MATMULS)
def test_only_rows_and_a_matrix_in_order_are_taken(text: str) -> None:
    contraction = parse_contraction(text)
    x, w = (jnp.ones([4] * len(t.dims)) for t in contraction.operands)
    many = jnp.ones([33, *x.shape[1:]])
    assert not few_rows_can(contraction, x, w)  # outside a mesh of one device
    with jax.set_mesh(device_mesh({"X": 1})):
        assert few_rows_can(contraction, x, w) == MATMULS[text]
        assert not few_rows_can(contraction, many, w)
        assert not few_rows_can(contraction, x.astype(jnp.bfloat16), w)


def test_a_product_of_too_many_rows_is_refused() -> None:
    result = jax.ShapeDtypeStruct((33, 8), jnp.float32)
    call = jax.ffi.ffi_call(native.FEW_ROWS, result)
    with pytest.raises(jax.errors.JaxRuntimeError, match="more than a few rows"):
        jax.block_until_ready(call(jnp.ones((33, 4)), jnp.ones((4, 8))))


def test_pages_of_few_bits_are_left_to_xla() -> None:
    kv = jnp.zeros((1, 1, 4, 2, 8), jnp.int8)
    assert not native_can({"kv": kv})
    assert not native_can({"kv": kv.astype(jnp.float32), "kv_scale": kv})
    assert native_can({"kv": kv.astype(jnp.float32)})


WITHOUT = """
import sys
from rooflight.program.cpu.load import has_native
from rooflight.program.decode.form import decode_form
form = decode_form()
print(has_native(), form.is_by_row, form.is_native)
"""


@pytest.mark.parametrize("compiler", ["false", "/no/such/compiler"])
def test_without_a_compiler_xla_does_it(compiler: str, tmp_path: Path) -> None:
    environment = os.environ | {"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "False"]
    assert "attention will be slower" in done.stderr and "CXX" in done.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_code_is_not_loaded_from_where_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "rooflight"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.has_native.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert not native.has_native()
    finally:
        native.has_native.cache_clear()
    assert "can be written by others; chmod 700" in caplog.text
    monkeypatch.undo()
    assert native.has_native()  # where nobody does, and a second time in one process


def test_a_library_that_was_planted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others could write the folder, before it was closed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler = tmp_path / "c++"  # which file is loaded is asked here, not what is in it
    compiler.write_text(
        '#!/bin/sh\nfor last; do :; done\ntest "$1" = --version || echo made > $last\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    good = native.library()
    made = good.read_bytes()
    other = tmp_path / "other.so"
    other.write_bytes(b"planted")

    def plant() -> None:
        good.unlink()
        good.write_bytes(b"planted")

    def by_mode() -> None:
        plant()
        good.chmod(0o666)

    def by_owner() -> None:
        plant()
        os.chown(good, 12345, -1)

    def by_link() -> None:
        good.unlink()
        good.symlink_to(other)

    for way in (by_mode, by_link, *((by_owner,) if os.getuid() == 0 else ())):
        way()
        assert native.library().read_bytes() == made, way


def test_a_library_is_made_once_and_again_for_another_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = native.library()
    made = first.stat().st_mtime_ns
    assert native.library() == first and first.stat().st_mtime_ns == made
    monkeypatch.setattr(native, "_processor", lambda: "another")
    assert native.library() != first
    assert not list(first.parent.glob("tmp*"))  # what was begun is gone
