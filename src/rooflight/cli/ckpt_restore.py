"""`rooflight ckpt restore`: the memory it takes of a host, said first; then it is moved."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rooflight.cli.output import print_json, suggest
from rooflight.cli.parser import Namespace
from rooflight.cli.run_flags import require_packages
from rooflight.errors import UsageError
from rooflight.plan.file.record import Plan, read_plan
from rooflight.units import format_si

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
