"""`rooflight train`: trains the plan in this process, and goes on where it was stopped."""

import sys

from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.running.run_flags import TEMPLATE, add_run, cpu_devices, require_packages, run_of
from rooflight.cli.running.train_page import Progress
from rooflight.plan.file.codec import encode
from rooflight.plan.file.record import plan_hash
from rooflight.train.events import goodput, losses, read_events, validation_losses
from rooflight.train.run import Run, claim, run_hash
from rooflight.units import format_count, format_seconds

HELP = "trains a plan in this process: data, checkpoints, events; goes on where it was stopped"


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.set_examples("rooflight train", "rooflight train --json")


def run(args: Namespace) -> int:
    if args.run is None:
        if args.json:
            print_json("train", {"template": TEMPLATE})
        else:
            print(TEMPLATE, end="")
        return 0
    found = run_of(args)
    devices = cpu_devices(args, found, 1)
    require_packages()
    return _train(args, found, devices)


def _train(args: Namespace, found: Run, devices: int | None) -> int:
    # Only now: these bring jax, which takes seconds.
    from rooflight.train.supervisor import free_port
    from rooflight.train.worker import save_on_interrupt, start_jax, work

    claim(found)
    attempts = (int(str(e["attempt"])) for e in read_events(found.folder))
    attempt = max(attempts, default=0) + 1
    start_jax(found, f"127.0.0.1:{free_port('127.0.0.1')}", 1, 0, devices)
    shown = Progress(found)
    save_on_interrupt(shown.say)  # jax listens to SIGTERM from here on
    code = work(found, 0, attempt, shown)
    if args.json:
        print_json("train", _document(found))
    else:
        show(_summary(found))
    sys.stdout.flush()
    return code


def _document(run: Run) -> dict[str, object]:
    curve = losses(run.folder)
    return {
        "run": run_hash(run),
        "plan": plan_hash(run.plan),
        "steps": len(curve),
        "losses": [curve[step] for step in sorted(curve)],
        "validation_losses": validation_losses(run.folder),
        "goodput": encode(goodput(run.folder)),
    }


def _summary(run: Run) -> str:
    curve, spent = losses(run.folder), goodput(run.folder)
    last = max(curve)
    return (
        f"{format_count(last + 1)} steps, loss {curve[last]:.4f}; {spent.share:.0%} of"
        f" {format_seconds(spent.wall_s)} went into steps that count"
    )
