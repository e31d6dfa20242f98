"""`rooflight chips`: the catalog as a table; with a chip's name, its facts (see chip_facts.py).

The table must start within five times a bare interpreter. Importing dataclasses for the `Chip`
records takes half of that and parsing the whole catalog the rest, so the table scans the files.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import cast

from rooflight.cli.flags import add_verbose
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.ui.text.table import table
from rooflight.units import format_si, median

HELP = "the hardware catalog: every chip, or every fact of one chip with its source"

_CATALOG = os.path.normpath(os.path.join(__file__, *[os.pardir] * 3, "hardware", "catalog"))
_FACT = re.compile(r'(\w+) = (?:"(.+)"|\[(.+), "\w+"\])')
_KINDS = ("tpu", "gpu", "cpu")
_16_BIT = ("flops.bf16", "flops.f16")
_HEADER = (
    *("chip", "16-bit FLOP/s", "8-bit", "4-bit", "HBM B", "HBM B/s"),
    *("ridge FLOP/B", "link B/s", "pod", "$/h"),
)

Facts = Mapping[str, object]  # title, kind, and each fact by its dotted name in the file


def configure(parser: Parser) -> None:
    parser.add_argument("chip", nargs="?", help="one chip, such as v5p; all of them if left out")
    parser.add_argument("--toml", action="store_true", help="print the chip as a catalog file")
    add_verbose(parser, help="also the detail facts of the chip and the address of each source")
    parser.set_examples(
        "rooflight chips v5p", "rooflight chips v5e --toml", "rooflight chips --json"
    )


def run(args: Namespace) -> int:
    if args.chip is not None:
        from rooflight.cli.hardware.chip_facts import show_chip

        return show_chip(args)
    if args.toml:
        raise UsageError("--toml prints one chip", hint="for instance `rooflight chips v5e --toml`")
    catalog = read_catalog()
    if args.json:
        print_json("chips", {"chips": [{"name": name, **facts} for name, facts in catalog.items()]})
        return 0
    show(overview(catalog))
    suggest("rooflight chips v5p")
    return 0


def read_catalog() -> dict[str, Facts]:
    """Facts of every chip: TPUs, GPUs, CPUs, each from slow to fast."""
    if os.environ.get("ROOFLIGHT_CHIPS"):
        from rooflight.cli.hardware.chip_facts import (
            all_facts,  # a user's files need the checking reader
        )

        found = all_facts()
    else:
        found = built_in_facts()
    every = {name: priced(facts) for name, facts in found.items()}
    return dict(sorted(every.items(), key=lambda item: _rank(item[1])))


def built_in_facts() -> dict[str, Facts]:
    """The facts of the built-in files, unchecked: the tests have checked them."""
    names = sorted(name for name in os.listdir(_CATALOG) if name.endswith(".toml"))
    return {name.removesuffix(".toml"): _scan(os.path.join(_CATALOG, name)) for name in names}


def _scan(path: str) -> Facts:
    """Reads one fact a line, as the built-in files are written; a test compares with tomllib."""
    facts: dict[str, object] = {}
    section = "facts"  # title and kind stand above the first section
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("["):
                section = line[1:].split("]")[0]
            elif section.startswith("facts") and (match := _FACT.match(line)):
                prefix = section.removeprefix("facts").removeprefix(".")
                name = f"{prefix}.{match[1]}" if prefix else match[1]
                facts[name] = match[2] or json.loads(match[3].replace("_", ""))
    return facts


def _rank(facts: Facts) -> tuple[int, float, str]:
    return _KINDS.index(str(facts["kind"])), _fastest(facts, *_16_BIT) or 0.0, str(facts["title"])


def overview(catalog: Mapping[str, Facts]) -> str:
    """The table of all chips."""
    rows = [_row(name, facts) for name, facts in catalog.items()]
    first = f"{len(catalog)} chips; per chip, dense rates, links one way; - is unknown"
    return f"{first}\n\n{table(_HEADER, rows, align='lrrrrrrrlr')}"


def _row(name: str, facts: Facts) -> tuple[str, ...]:
    rate, hbm_rate = _fastest(facts, *_16_BIT), _fastest(facts, "hbm_bytes_per_s")
    return (
        name,
        _show(rate),
        _show(_fastest(facts, "flops.fp8", "flops.int8")),
        _show(_fastest(facts, "flops.fp4", "flops.int4")),
        _show(_fastest(facts, "hbm_bytes")),
        _show(hbm_rate),
        f"{rate / hbm_rate:.0f}" if rate and hbm_rate else "-",
        _show(_fastest(facts, "torus.link_bytes_per_s", "switched.chip_egress_bytes_per_s")),
        _pod(facts),
        _show(_fastest(facts, "dollars_per_hour")),
    )


def priced(facts: Facts) -> Facts:
    """With the middle one of the clouds' prices on demand, as `Chip.dollars_per_hour` has it."""
    asked = [cast(float, facts[n]) for n in facts if n.startswith("prices.")]
    return ({"dollars_per_hour": median(asked)} if asked else {}) | dict(facts)


def _fastest(facts: Facts, *names: str) -> float | None:
    return max((cast(float, facts[name]) for name in names if name in facts), default=None)


def _show(value: float | None) -> str:
    return "-" if value is None else format_si(value, "").rstrip()


def _pod(facts: Facts) -> str:
    """The largest torus, or the NVLink domain."""
    shape = cast(list[int], facts.get("torus.pod_shape", []))
    return "x".join(map(str, shape)) or str(facts.get("switched.domain_chips", "-"))
