"""`rooflight doctor`: what this machine can do, and how to get the rest."""

import platform
import shlex

from rooflight import __version__
from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.compile.aot.cache import MOST_BYTES, CacheEntry, cache_entries, cache_folder
from rooflight.compile.aot.environment import Ability, abilities
from rooflight.compile.aot.target import target_names
from rooflight.errors import UsageError
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_si

HELP = "what this machine can compile for, with which versions, and how to get the rest"


def configure(parser: Parser) -> None:
    parser.set_examples("rooflight doctor", "rooflight doctor --json")


def run(args: Namespace) -> int:
    found = abilities()
    targets = {kind: names for kind, names in target_names().items() if _can(found, kind)}
    if args.json:
        print_json("doctor", _document(found, targets))
        return 0
    show("\n\n".join((_answer(found, targets), _table(found), _place())))
    return 0


def _can(found: list[Ability], kind: str) -> bool:
    """jax and the compiler of a kind of chip are both there."""
    return found[0].is_there and found[1 if kind == "tpu" else 2].is_there


def _answer(found: list[Ability], targets: dict[str, list[str]]) -> str:
    names = [name for group in targets.values() for name in group]
    if not names:
        return "This machine can plan, and read HLO; it cannot compile for any chip yet."
    missing = (
        [] if len(targets) == 2 else ["; GPUs: unknown, see below" if "tpu" in targets else ""]
    )
    return f"This machine can compile for slices of {', '.join(names)}{''.join(missing)}."


def _table(found: list[Ability]) -> str:
    host = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    rows = [["rooflight", __version__, ""], ["machine", host, ""]]
    for ability in found:
        version = ability.version or "not installed"
        rows.append([ability.name, version, "" if ability.is_there else ability.remedy])
    return table(["part", "version", "how to get it"], rows, align="lll")


def _place() -> str:
    moves = "ROOFLIGHT_CACHE moves it"
    try:
        folder, entries = cache_folder(), cache_entries(cache_folder())
    except UsageError as error:
        return f"Results of compiles cannot be kept: {error}; {moves}."
    if not entries:
        return f"Results of compiles will be kept in {folder}; {moves}."
    size = format_si(sum(e.nbytes for e in entries), "B")
    most = format_si(MOST_BYTES, "B")
    is_ours = {e.path for e in entries} == {*folder.iterdir()}
    clear = f" To clear it: rm -r {shlex.quote(str(folder))};" if is_ours else ""
    return (
        f"{format_count(len(entries))} results of compiles ({size}) are kept in {folder}; above"
        f" {most} the least recently used leave.{clear} {moves}."
    )


def _document(found: list[Ability], targets: dict[str, list[str]]) -> dict[str, object]:
    try:
        folder, entries = cache_folder(), cache_entries(cache_folder())
    except UsageError:
        folder, entries = None, list[CacheEntry]()
    return {
        "rooflight": __version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "parts": {a.name: {"version": a.version, "how_to_get_it": a.remedy} for a in found},
        "targets": targets,
        "cache": {
            "folder": folder and str(folder),
            "results": len(entries),
            "bytes": sum(e.nbytes for e in entries),
            "most_bytes": MOST_BYTES,
        },
    }
