"""One chip of the catalog, fact by fact: as a table, as JSON, or as a file to start one's own from.

Everything is read off the `Chip` record, so a user's chip shows the same way as a built-in one.
"""

from collections.abc import Iterable, Mapping
from typing import cast

from rooflight.cli.chips import priced
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.hardware.chip import Chip, Source
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, format_si

# End of a fact's name -> its unit.
_UNITS = {
    "bytes_per_s": "B/s",
    "bytes_per_s_per_host": "B/s",
    "bytes_per_sm": "B",
    "bytes": "B",
    "_flops": "FLOP/s",
    "_flops_sparse": "FLOP/s",
    "_hz": "Hz",
    "_s": "s",
    "watts": "W",
    "dollars_per_hour": "$/h",
}


def show_chip(args: Namespace) -> int:
    """Prints one chip in the form the flags ask for."""
    chip = load_chip(args.chip)
    if args.json:
        print_json("chips", {"chip": _document(chip)})
    elif args.toml:
        print(chip_toml(chip))
    else:
        show(_text(chip, verbose=args.verbose))
        if chip.flops and chip.hbm_bytes_per_s:
            suggest(f"rooflight roofline --on {chip.name}")
    return 0


def all_facts() -> dict[str, dict[str, object]]:
    """Facts of every chip, the user's included, checked."""
    return {name: _plain(load_chip(name)) for name in chip_names()}


def _plain(chip: Chip) -> dict[str, object]:
    facts = {name: _value(chip, name) for name in chip.sources}
    return priced({"title": chip.title, "kind": chip.kind, **facts})


def _value(chip: Chip, fact: str) -> object:
    """The value of a fact by its dotted name in the file, such as `torus.link_bytes_per_s`."""
    node: object = chip
    for part in fact.split("."):
        if isinstance(node, Mapping):
            node = cast(Mapping[str, object], node)[part]
        else:
            node = getattr(node, part)
    return node


def unit_of(fact: str) -> str:
    """The unit of a fact, told by its name; empty for plain counts.

    >>> unit_of("hbm_bytes_per_s"), unit_of("flops.bf16"), unit_of("torus.hop_s"), unit_of("cores")
    ('B/s', 'FLOP/s', 's', '')
    """
    if fact.startswith("flops."):
        return "FLOP/s"
    if "prices." in fact:
        return "$/h"
    return next((unit for end, unit in _UNITS.items() if fact.endswith(end)), "")


def _show(value: object, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "x".join(map(str, cast(tuple[int, ...], value)))
    if isinstance(value, str):
        return value
    number = cast(float, value)
    if unit == "s":
        return format_seconds(number)
    if unit in ("", "W", "$/h"):
        return f"{number:,.12g} {unit}".rstrip()
    return format_si(number, unit)


def _text(chip: Chip, *, verbose: bool) -> str:
    facts = [f for f in chip.sources if verbose or not f.startswith("detail.")]
    rows = [_row(chip, fact) for fact in facts]
    hidden = len(chip.sources) - len(facts)
    blocks = [f"{chip.name}: {chip.title}, {len(chip.sources)} facts"]
    if rows:
        blocks.append(table(("fact", "value", "source", "checked"), rows, align="lrll"))
        blocks.append(_legend([chip.sources[fact] for fact in facts], verbose=verbose))
    if hidden:
        blocks.append(f"-v shows {hidden} more")
    return "\n\n".join(blocks)


def fact_text(chip: Chip, fact: str) -> str:
    """The value of a fact with its unit."""
    return _show(_value(chip, fact), unit_of(fact))


def _row(chip: Chip, fact: str) -> list[str]:
    source = chip.sources[fact]
    return [fact, fact_text(chip, fact), source.key, source.checked]


def _legend(sources: Iterable[Source], *, verbose: bool) -> str:
    by_key = {source.key: source for source in sources}
    width = max(map(len, by_key))
    lines: list[str] = []
    for key, source in by_key.items():
        lines.append(f"{key:<{width}}  {source.title}")
        if verbose:
            lines.append(f"{'':<{width}}  {source.url}")
    return "\n".join(lines)


def _document(chip: Chip) -> dict[str, object]:
    facts = {
        fact: {
            "value": _value(chip, fact),
            "unit": unit_of(fact),
            "source": source.title,
            "url": source.url,
            "checked": source.checked,
        }
        for fact, source in chip.sources.items()
    }
    return {"name": chip.name, "title": chip.title, "kind": chip.kind, "facts": facts}


def chip_toml(chip: Chip) -> str:
    """The chip as a catalog file, which reads back as the same chip."""
    lines = [f"title = {_quote(chip.title)}", f"kind = {_quote(chip.kind)}"]
    for source in {s.key: s for s in chip.sources.values()}.values():
        lines += ["", f"[sources.{source.key}]", f"title = {_quote(source.title)}"]
        lines += [f"url = {_quote(source.url)}", f"checked = {_quote(source.checked)}"]
    section = None
    for fact in sorted(chip.sources, key=lambda name: name.rpartition(".")[0]):
        head, _, name = fact.rpartition(".")
        if head != section:
            lines += ["", f"[facts.{head}]" if head else "[facts]"]
            section = head
        lines.append(f"{name} = [{_literal(_value(chip, fact))}, {_quote(chip.sources[fact].key)}]")
    return "\n".join(lines)


def _quote(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
    import json

    return json.dumps(text, ensure_ascii=True)


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return str(list(cast(tuple[int, ...], value)))
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, int):
        return f"{value:_}"
    number = cast(float, value)
    digits, _, exponent = f"{number:e}".partition("e")
    short = f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return short if abs(int(exponent)) > 3 and float(short) == number else repr(number)
