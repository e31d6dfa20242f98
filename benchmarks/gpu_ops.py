"""Kernels of GPUs as published, priced by our roofline: the constants, and what they are off by.

    python -m benchmarks.gpu_ops            # the table of docs/verify.md
    python -m benchmarks.gpu_ops --write    # into the page; constants and errors into the package

In: `gpu_ops.json`, operator tables with source and date. Seven constants are fitted to all
GPUs together by the mean error. Errors are those of each GPU by constants of the other six.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any  # JSON

from benchmarks.page import between, markdown
from benchmarks.record import ROOT
from rooflight.compile.hlo.work import MatmulSizes
from rooflight.compile.time.gpu import (
    AttentionSizes,
    GpuRates,
    KernelError,
    attention_s,
    matmul_s,
    network_s,
)
from rooflight.costs.network import collective_time
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import parse_mesh

DATA = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "verify.md"
RATES = ROOT / "src/rooflight/compile/time/gpu_rates.toml"
MARK = "gpu ops"
HEAD_DIM = 128
_BYTES = {"bf16": 2, "fp8": 1}
_SIZES = tuple(2**power for power in range(14, 30, 3))
_FEW = 8  # rows, of which a matmul waits for the weights alone
_GROUPS = (
    (("start_s", "memory", "bf16"), "matmul, bf16"),
    (("fp8",), "matmul, fp8"),
    (("attention", "attention_start_s"), "attention"),
    (("links",), "collective"),
)
_BEGIN = GpuRates(4e-6, {"bf16": 0.8, "fp8": 0.6}, 0.5, 1e-5, 0.8, 0.6, {})
Price = Callable[[GpuRates], float]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One measured kernel."""

    kind: str
    chip: str
    seconds: float
    price: Price


@cache
def _read() -> Mapping[str, Any]:
    return json.loads(DATA.read_text())


@cache
def _chip(name: str) -> Chip:
    return load_chip(name)


def kernels() -> list[Kernel]:
    return [*_matmuls(), *_prefill(), *_decode(), *_links()]


def _matmuls() -> Iterator[Kernel]:
    for name, dtype, n, k, shares in _read()["matmuls"]:
        for m, share in zip(_read()["m"], shares, strict=True):
            if share:
                sizes, width = MatmulSizes(1, m, n, k, dtype), _BYTES[dtype]
                nbytes = width * (n * k + m * k) + 2 * m * n
                price = _by(lambda r, c, s=sizes, b=nbytes: matmul_s(c, s, b, r), name)
                seconds = sizes.flops / share / _read()["peaks"][name][dtype]
                few = ", few rows" if m <= _FEW else ""
                yield Kernel(f"matmul, {dtype}{few}", name, seconds, price)


def _by(price: Callable[[GpuRates, Chip], float], name: str) -> Price:
    return lambda rates: price(rates, _chip(name))


def _prefill() -> Iterator[Kernel]:
    for name, heads, kv_heads, batch, length, share in _read()["prefill"]:
        sizes = AttentionSizes(
            2 * batch * length**2 * heads * HEAD_DIM, batch * heads, length, True
        )
        nbytes = 4 * HEAD_DIM * batch * length * (heads + kv_heads)
        price = _by(lambda r, c, s=sizes, b=nbytes: attention_s(c, s, b, r), name)
        seconds = sizes.flops / share / _read()["peaks"][name]["bf16"]
        yield Kernel("attention, prefill", name, seconds, price)


def _decode() -> Iterator[Kernel]:
    for name, cache_of, kv_heads, batch, length, share in _read()["decode"]:
        nbytes = 2 * _BYTES[cache_of] * HEAD_DIM * batch * length * kv_heads
        sizes = AttentionSizes(4 * batch * length * kv_heads * HEAD_DIM, batch * kv_heads, 1, False)
        price = _by(lambda r, c, s=sizes, b=nbytes: attention_s(c, s, b, r), name)
        seconds = nbytes / share / _read()["peaks"][name]["hbm"]
        yield Kernel("attention, decode", name, seconds, price)


def _links() -> Iterator[Kernel]:
    for name, kind, gpus, alpha_us, gb_per_s, _ in _read()["links"]:
        group = parse_mesh(f"X={gpus}", on=f"{name}:{gpus}").group(("X",))
        for size in _SIZES:
            whole = size * (gpus if kind == "all_to_all" else 1)
            time = collective_time(kind, whole, group)
            seconds = alpha_us * 1e-6 + size / (gb_per_s * 1e9)
            price: Price = lambda rates, t=time: network_s(t, rates)  # noqa: E731
            yield Kernel("collective", name, seconds, price)


def error(kernel: Kernel, rates: GpuRates) -> float:
    """Of the price, as a part of what was measured."""
    return kernel.price(rates) / kernel.seconds - 1


def fit(found: Sequence[Kernel]) -> GpuRates:
    """Constants with the least mean error, each group by the kernels that it decides."""
    rates = _BEGIN
    for names, kinds in _GROUPS:
        of = [kernel for kernel in found if kernel.kind.startswith(kinds)]
        step = 0.16
        least = _loss(of, rates)
        while step > 0.004:
            better = min(_near(rates, names, step), key=lambda r, of=of: _loss(of, r))
            if (loss := _loss(of, better)) < least:
                rates, least = better, loss
            else:
                step /= 2
    return rates


def _loss(found: Sequence[Kernel], rates: GpuRates) -> float:
    return math.fsum(abs(math.log1p(error(kernel, rates))) for kernel in found) / len(found)


def _near(rates: GpuRates, names: Sequence[str], step: float) -> Iterator[GpuRates]:
    """With one constant more or less; no share is above 1."""
    for name in names:
        for by in (1 + step, 1 / (1 + step)):
            if name in rates.matmul:
                share = min(1.0, rates.matmul[name] * by)
                yield replace(rates, matmul={**rates.matmul, name: share})
            else:
                yield replace(rates, **{name: min(1.0, getattr(rates, name) * by)})


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants of all GPUs, and the errors of each by those of the others, by kind."""

    rates: GpuRates
    errors: Mapping[str, list[float]]


def fitted() -> Fitted:
    every = kernels()
    errors: dict[str, list[float]] = {kernel.kind: [] for kernel in every}
    for chip in dict.fromkeys(kernel.chip for kernel in every):
        rates = fit([k for k in every if k.chip != chip])
        for kernel in every:
            if kernel.chip == chip:
                errors[kernel.kind].append(error(kernel, rates))
    return Fitted(fit(every), errors)


def spread(errors: Sequence[float]) -> KernelError:
    away = sorted(map(abs, errors))
    middle, far = away[len(away) // 2], away[math.ceil(0.9 * len(away)) - 1]
    return KernelError(round(middle, 3), round(far, 3), len(away))


UNITS = {
    "matrix": "matmul, bf16",
    "kernels": "attention, prefill",
    "memory": "matmul, bf16, few rows",
    "network": "collective",
}


def rates_text(found: Fitted) -> str:
    rates = found.rates
    shares = ", ".join(f"{name} = {share:.3f}" for name, share in rates.matmul.items())
    errors = "\n".join(
        f"{unit} = {{ median = {s.median}, p90 = {s.p90}, rows = {s.rows} }}"
        for unit, kind in UNITS.items()
        for s in [spread(found.errors[kind])]
    )
    return f"""# Written by `python -m benchmarks.gpu_ops --write`; parts of the catalog's roofs.
# Errors are those of a GPU by constants of the others.
source = "{_read()["source"]}"
checked = "{_read()["checked"]}"

[rates]
start_s = {rates.start_s:.3g}
matmul = {{ {shares} }}
attention = {rates.attention:.3f}
attention_start_s = {rates.attention_start_s:.3g}
memory = {rates.memory:.3f}
links = {rates.links:.3f}

[errors]
{errors}
"""


def table(found: Fitted) -> str:
    """Errors by kind of kernel, and on which side they lie."""
    rows = [
        [kind, str(s.rows), f"{s.median:.0%}", f"{s.p90:.0%}", f"{_middle(errors):+.0%}"]
        for kind, errors in found.errors.items()
        for s in [spread(errors)]
    ]
    return markdown([["kernel", "measured", "median error", "90 % within", "bias"], *rows])


def _middle(errors: Sequence[float]) -> float:
    return sorted(errors)[len(errors) // 2]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_ops", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"also {PAGE.name} and {RATES.name}")
    found = fitted()
    print(rates_text(found), table(found), sep="\n")
    if parser.parse_args(words).write:
        RATES.write_text(rates_text(found))
        PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), MARK, table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
