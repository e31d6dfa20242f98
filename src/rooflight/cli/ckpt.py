"""`rooflight ckpt`: what a checkpoint holds, and what it takes to restore it elsewhere."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rooflight.cli.ckpt_restore import run_export, run_restore
from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_si

if TYPE_CHECKING:
    from rooflight.train.checkpoint_tree import SavedArray, SavedTree

HELP = "an Orbax checkpoint on a laptop: tree, shapes, mesh, seals, bytes to restore it"
_FORM = """rooflight ckpt show FOLDER                   arrays, dtypes, splits, whether it is whole
rooflight ckpt show FOLDER --on SLICE        and the bytes of a chip and a host of that slice
rooflight ckpt restore FOLDER --plan FILE    the memory of a host to restore it under a plan
  ... --plan FILE --out RUN                  and restores it on CPUs here, as a run that goes on
rooflight ckpt export FOLDER --hf OUT        the weights as a folder of Hugging Face
FOLDER is a run or a step of its checkpoints; of `show`, also anybody's Orbax checkpoint.
"""


def configure(parser: Parser) -> None:
    parser.add_argument("what", nargs="?", help="show, restore or export; none: what there is")
    parser.add_argument("folder", nargs="?", help="of a run or of one checkpoint")
    parser.add_argument("--on", metavar="SLICE", help="to restore on: v5p:4x4x4")
    parser.add_argument("--plan", metavar="FILE", help="of `plan train --json`: to restore under")
    parser.add_argument("--out", metavar="RUN", help="a run's folder to be made of it")
    parser.add_argument("--hf", metavar="OUT", help="a new folder for `export` to write")
    parser.add_argument("--config", metavar="FILE", help="config.json, if the run had no --from")
    parser.set_examples("rooflight ckpt", "rooflight ckpt --json")


def run(args: Namespace) -> int:
    if args.what is None:
        if args.json:
            print_json("ckpt", {"form": _FORM})
        else:
            print(_FORM, end="")
        return 0
    if args.what not in ("show", "restore", "export") or args.folder is None:
        raise UsageError(f"{args.what!r} of {args.folder!r}", hint="rooflight ckpt show FOLDER")
    if args.what == "restore":
        return run_restore(args)
    if args.what == "export":
        return run_export(args)
    if args.plan or args.out:
        raise UsageError(
            "--plan and --out restore", hint="rooflight ckpt restore FOLDER --plan FILE"
        )
    if find_spec("tensorstore") is None:
        raise MissingExtraError("reading checkpoints needs tensorstore", hint=install("train"))
    on = parse_slice(args.on) if args.on else None
    return _show(args, on)


def _show(args: Namespace, on: Slice | None) -> int:
    from rooflight.train.checkpoint_tree import read_tree
    from rooflight.train.seal import damage, is_sealed

    tree = read_tree(Path(args.folder))
    step = tree.folder.parent
    sealed = is_sealed(step)
    wrong = damage(step) if sealed else None
    if args.json:
        print_json("ckpt", _document(tree, on, sealed=sealed, wrong=wrong))
    else:
        show(_text(tree, on, sealed=sealed, wrong=wrong))
    return 1 if wrong else 0


def _text(tree: "SavedTree", on: Slice | None, *, sealed: bool, wrong: str | None) -> str:
    mesh = ",".join(f"{axis}={size}" for axis, size in tree.axes.items()) or "not recorded"
    whole = "damaged: " + wrong if wrong else "whole by its checksums" if sealed else "not sealed"
    lines = [
        f"{tree.folder}: {format_count(len(tree.arrays))} arrays, {format_si(tree.nbytes, 'B')},"
        f" saved from mesh {mesh}; {whole}"
    ]
    if on is not None:
        chip, host = _shares(tree, on)
        lines.append(
            f"split over {on}: {format_si(chip, 'B')} per chip, {format_si(host, 'B')} per host"
            f" of {on.chip.host_chips}"
        )
    rows = [
        [a.name, a.dtype, "x".join(map(str, a.shape)) or "-", _split(a), format_si(a.nbytes, "B")]
        for a in tree.arrays
    ]
    header = ("array", "dtype", "shape", "split", "bytes")
    return "\n".join([*lines, "", table(header, rows, align="llllr", keep=("array", "bytes"))])


def _split(array: "SavedArray") -> str:
    if array.split is None:
        return "?"
    return ",".join("+".join(axes) or "-" for axes in array.split) or "-"


def _shares(tree: "SavedTree", on: Slice) -> tuple[int, int]:
    """Bytes of a chip and of a host if every array that divides is split; the others are whole."""
    chips = on.num_chips
    chip = sum(a.nbytes // chips if _divides(a.shape, chips) else a.nbytes for a in tree.arrays)
    return chip, chip * min(on.chip.host_chips, chips)


def _divides(shape: Sequence[int], ways: int) -> bool:
    total = 1
    for size in shape:
        total *= size
    return total % ways == 0 and total >= ways


def _document(
    tree: "SavedTree", on: Slice | None, *, sealed: bool, wrong: str | None
) -> dict[str, object]:
    arrays = [
        {"name": a.name, "dtype": a.dtype, "shape": a.shape, "split": a.split, "bytes": a.nbytes}
        for a in tree.arrays
    ]
    found: dict[str, object] = {"folder": str(tree.folder), "mesh": dict(tree.axes)}
    found |= {"sealed": sealed, "damage": wrong, "bytes": tree.nbytes, "arrays": arrays}
    if on is not None:
        chip, host = _shares(tree, on)
        found |= {"on": str(on), "chip_bytes": chip, "host_bytes": host}
    return found
