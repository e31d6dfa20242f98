"""One chip of the catalog, fact by fact: as a table, as JSON, or as a file to start one's own from.

Everything is read off the `Chip` record, so a user's chip shows the same way as a built-in one.
"""

import json
from typing import cast

from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.hardware.chip import Chip
from rooflight.ui.answers.hardware import chip_answer, fact_value, unit_of
from rooflight.ui.text.answer import answer_text


def show_chip(args: Namespace) -> int:
    """Prints one chip in the form the flags ask for."""
    chip = load_chip(args.chip)
    if args.json:
        print_json("chips", {"chip": _document(chip)})
    elif args.toml:
        print(chip_toml(chip))
    else:
        show(answer_text(chip_answer(chip, everything=args.verbose)))
        if chip.flops and chip.hbm_bytes_per_s:
            suggest(f"rooflight roofline --on {chip.name}")
    return 0


def all_facts() -> dict[str, dict[str, object]]:
    """Facts of every chip, the user's included, checked."""
    return {name: _plain(load_chip(name)) for name in chip_names()}


def _plain(chip: Chip) -> dict[str, object]:
    facts = {name: fact_value(chip, name) for name in chip.sources}
    return {"title": chip.title, "kind": chip.kind, **facts}


def _document(chip: Chip) -> dict[str, object]:
    facts = {
        fact: {
            "value": fact_value(chip, fact),
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
        lines.append(
            f"{name} = [{_literal(fact_value(chip, fact))}, {_quote(chip.sources[fact].key)}]"
        )
    return "\n".join(lines)


def _quote(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
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
