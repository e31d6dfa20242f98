"""`rooflight ckpt`: what a checkpoint holds, and what it takes to restore it elsewhere."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.running.run_flags import require_packages
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.plan.file.record import Plan, read_plan
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


if TYPE_CHECKING:
    from rooflight.train.move import RestoreMemory
    from rooflight.train.run import Run


def run_restore(args: Namespace) -> int:
    if not args.plan or args.on:
        raise UsageError(
            "`ckpt restore` restores under a plan, which has its own slice",
            hint=f"rooflight ckpt restore {args.folder} --plan plan.json",
        )
    plan = read_plan(args.plan)
    require_packages()
    # Only now: these bring jax, which takes seconds.
    from rooflight.train.checkpoint_tree import find_checkpoint
    from rooflight.train.move import check_whole, moved_run, restore_memory

    step = find_checkpoint(Path(args.folder)).resolve().parent
    run = moved_run(step, plan, args.out or str(step.parent.parent))
    needs = restore_memory(step, run)
    print(_said(step, plan, needs), file=sys.stderr if args.json else sys.stdout, flush=True)
    restored = None
    if args.out:
        check_whole(step)
        _check_memory(needs, plan.placed().slice.num_chips)
        restored = _restore(step, run)
    if args.json:
        sizes = {**asdict(needs), "host_bytes": needs.host_bytes, "peak_bytes": needs.peak_bytes}
        print_json("ckpt", {"checkpoint": str(step), **sizes, "restored_step": restored})
    elif restored is not None:
        print(f"restored step {restored} to {args.out}, as {plan.layout} on {plan.mesh}")
        suggest(f"rooflight launch {args.plan} --data {run.data} --out {args.out} ...")
    return 0


def _said(step: Path, plan: Plan, needs: "RestoreMemory") -> str:
    hosts = "a host" if needs.host_chips == 1 else f"a host of {needs.host_chips} chips"
    again = ""
    if needs.restacked_bytes:
        again = "; its layers are stacked otherwise, and picked anew one array at a time"
    return (
        f"{step}: {format_si(needs.state_bytes, 'B')} of state; as {plan.layout} on {plan.slice}"
        f" {format_si(needs.chip_bytes, 'B')} per chip, {format_si(needs.host_bytes, 'B')} {hosts},"
        f" at most {format_si(needs.peak_bytes, 'B')} of a host's memory while it restores{again}"
    )


def _check_memory(needs: "RestoreMemory", chips: int) -> None:
    """All chips of the plan are made of this one machine."""
    from rooflight.train.move import available_bytes

    free, peak = available_bytes(), needs.peak_bytes * max(1, chips // needs.host_chips)
    if free is not None and peak > free:
        raise UsageError(
            f"all of it here takes {format_si(peak, 'B')}, and {format_si(free, 'B')} are free",
            hint="train on the slice itself: `rooflight launch` restores there, shard by shard",
        )


def _restore(step: Path, run: "Run") -> int:
    from rooflight.train.move import move
    from rooflight.train.supervisor import free_port
    from rooflight.train.worker import start_jax

    chips = run.plan.placed().slice.num_chips
    start_jax(run, f"127.0.0.1:{free_port('127.0.0.1')}", 1, 0, chips)
    return move(step, run, lambda *_, **__: None)


def run_export(args: Namespace) -> int:
    """`ckpt export`: the weights as a folder of Hugging Face."""
    if not args.hf:
        raise UsageError(
            "`ckpt export` writes a folder", hint=f"rooflight ckpt export {args.folder} --hf OUT"
        )
    require_packages()
    from rooflight.train.checkpoint_tree import find_checkpoint
    from rooflight.train.move import export_run

    step = find_checkpoint(Path(args.folder)).resolve().parent
    files = export_run(step, Path(args.hf), Path(args.config) if args.config else None)
    if args.json:
        print_json("ckpt", {"checkpoint": str(step), "files": [str(file) for file in files]})
    else:
        size = format_si(sum(file.stat().st_size for file in files), "B")
        print(f"wrote step {step.name}, {size} of weights in {len(files)} files, to {args.hf}")
        suggest(f"rooflight serve {args.hf}")
    return 0
