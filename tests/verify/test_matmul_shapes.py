"""What docs/collective-matmul.md says of the TPU compiler, asked once more."""

import importlib.util

import pytest
from matmul_shapes import BUILDS, DOC, SHAPES, cells, compiled

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("jax", "libtpu")),
        reason="libtpu, the compiler that is asked, is not installed",
    ),
]


@pytest.mark.parametrize("build", BUILDS)
def test_a_collective_matmul_takes_less_than_the_plain_form_of_the_same_shape(build: str) -> None:
    plain, collective = (compiled(build, SHAPES[1], is_collective=way) for way in (False, True))
    assert plain.network["Y"].hidden_s < 0.01 * plain.network["Y"].exposed_s
    assert collective.network["Y"].exposed_s < 0.5 * plain.network["Y"].exposed_s
    assert collective.seconds < 0.7 * plain.seconds


@pytest.mark.parametrize("build", BUILDS)
def test_the_page_has_what_the_compiler_says(build: str) -> None:
    row = " | ".join([BUILDS[build], *cells(build, SHAPES[1])])
    assert f"| {row} |" in DOC.read_text()
