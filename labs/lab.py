"""What every lab needs: eight devices made of the CPU, tables, and what the compiler did.

Import it before a device is used. Labs predict with `rooflight`, run, compare and assert.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any  # jitted functions of any signature

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8"
    " --xla_cpu_enable_concurrency_optimized_scheduler=false"  # in order, as on a chip
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax

from rooflight import parse_mesh
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import CompiledStep, read_step
from rooflight.costs.choose import Price, choose
from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Source
from rooflight.measure.microbench.host_chip import Host, host_of
from rooflight.measure.microbench.ops import host
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

jax.config.update("jax_platforms", "cpu")
DEVICES = 8
F32, BF16 = DTYPES["f32"], DTYPES["bf16"]


def question(text: str) -> None:
    """What the lab, or a part of it, is about."""
    print(f"\n== {text}\n")


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(table(header, rows))


def size(nbytes: float) -> str:
    return format_si(nbytes, "B")


def span(seconds: float) -> str:
    return format_seconds(seconds)


def compiled(function: Callable[..., Any], *arguments: Any) -> CompiledStep:
    """What the compiler made of a function, read by `rooflight`."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    assert text is not None
    return read_step(parse_module(text))


def moved(step: CompiledStep) -> dict[str, int]:
    """Bytes per step by kind of collective: V, the array as if this group did not split it."""
    total: Counter[str] = Counter()
    for collective in step.collectives:
        assert collective.bytes_per_step is not None
        total[collective.kind] += collective.bytes_per_step
    return dict(total)


def best(matmuls: Sequence[str], dims: Mapping[str, int]) -> list[Price]:
    """The best way to do each product on eight devices along X, asked of a v5e slice."""
    mesh = parse_mesh("X=8", on="v5e:2x4")
    found = [strategies(parse_contraction(text)) for text in matmuls]
    return [choose(one, dims=dims, mesh=mesh, dtype=BF16).best for one in found]


def derived(prices: Sequence[Price]) -> dict[str, int]:
    """What `moved` should find where arrays are f32; v5e has no matmuls of f32."""
    total: Counter[str] = Counter()
    for priced in (step for price in prices for step in price.steps if step.network):
        total[priced.step.op] += F32.nbytes(1) * priced.nbytes // BF16.nbytes(1)
    return dict(total)


def this_host(rounds: int = 3) -> Host:
    """The machine in front of you as a chip: its peak, its memory, its network of eight devices."""
    source = Source("lab", "measured by a lab", "", "")
    return host_of(host(rounds=rounds), load_chip("this-host"), devices=DEVICES, source=source)


def within(measured: float, predicted: float, factor: float) -> bool:
    """Whether two times are within a factor of each other, either way."""
    return 1 / factor <= measured / predicted <= factor
