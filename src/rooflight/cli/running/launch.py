"""`rooflight launch`: a run on several processes and hosts, started again when one dies."""

import os
import shlex
import sys

from rooflight.cli.flags import add_choice
from rooflight.cli.output import print_json
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.running.run_flags import (
    FLAGS,
    TEMPLATE,
    add_run,
    cpu_devices,
    require_packages,
    run_of,
)
from rooflight.cli.running.train_page import Progress
from rooflight.errors import UsageError
from rooflight.plan.file.codec import encode
from rooflight.plan.file.record import to_json
from rooflight.train.cluster_files import FORMS, ClusterJob, num_hosts
from rooflight.train.events import goodput
from rooflight.train.processes import HangTimeout
from rooflight.train.run import COMPILED, Run
from rooflight.train.supervisor import HostJob, supervise
from rooflight.units import parse_seconds, whole

HELP = "a run on several processes and hosts, watched, and started again when one dies"
_PORT = 8476
_MOST = 10**5


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--processes", default="1", help="of each host (default 1)")
    parser.add_argument("--hosts", help="how many (default 1; with --write, as the plan's slice)")
    parser.add_argument("--host", default="0", help="which one this is, from 0 (default 0)")
    parser.add_argument(
        "--leader",
        default=f"127.0.0.1:{_PORT}",
        metavar="ADDRESS:PORT",
        help=f"where host 0 listens; port 0 with one host: any (default 127.0.0.1:{_PORT})",
    )
    parser.add_argument(
        "--retries", default="5", help="attempts that get no further, before giving up (default 5)"
    )
    parser.add_argument(
        "--step-timeout",
        default="60s",
        help="without a step that is a hang, at least (default 60s)",
    )
    parser.add_argument(
        "--start-timeout", default="1800s", help="the same while it starts (default 1800s)"
    )
    add_choice(
        parser,
        "--write",
        (*FORMS,),
        what="cluster",
        help="start nothing: print the job of a cluster, jobset of Kubernetes, slurm or ray",
    )
    parser.add_argument("--image", default="IMAGE", help="of the containers of --write jobset")
    parser.add_argument(
        "--claim", default="CLAIM", metavar="NAME", help="of the volume with data and run folder"
    )
    parser.set_examples("rooflight launch", "rooflight launch --json")


def run(args: Namespace) -> int:
    if args.run is None:
        if args.json:
            print_json("launch", {"template": TEMPLATE})
        else:
            print(TEMPLATE, end="")
        return 0
    found = run_of(args)
    if args.write:
        return _write(args, found)
    args.hosts = args.hosts or "1"
    job = _job(args, found)
    require_packages()
    return _launch(args, job)


def _job(args: Namespace, run: Run) -> HostJob:
    hosts = whole("--hosts", args.hosts, most=_MOST)
    host = whole("--host", args.host, least=0, most=hosts - 1)
    processes = whole("--processes", args.processes, most=_MOST)
    address, _, port = args.leader.rpartition(":")
    if not address:
        raise UsageError(
            f"--leader {args.leader!r} has no port", hint="give --leader 10.0.0.1:8476"
        )
    return HostJob(
        run,
        host,
        hosts,
        processes,
        (address, whole("--leader", port, least=0, most=65535)),
        cpu_devices(args, run, hosts * processes),
        whole("--retries", args.retries, least=0, most=_MOST),
        HangTimeout(
            parse_seconds(args.start_timeout, what="--start-timeout"),
            parse_seconds(args.step_timeout, what="--step-timeout"),
        ),
        lambda number: _command(args, number),
    )


def _command(args: Namespace, number: int) -> str:
    """What starts a host."""
    where = ["--hosts", args.hosts, "--host", str(number), "--leader", args.leader]
    return shlex.join(["rooflight", "launch", args.run, *_words(args), *where])


def _words(args: Namespace) -> list[str]:
    """The command after the run's file, less what says which host this is."""
    words = list[str]()
    for flag in FLAGS:
        value = getattr(args, flag)
        words += [] if value is None else [f"--{flag.replace('_', '-')}", value]
    words += ["--cpu"] if args.cpu else []
    return [*words, "--processes", args.processes]


def _write(args: Namespace, run: Run) -> int:
    on = run.plan.placed().slice
    given = None if args.hosts is None else whole("--hosts", args.hosts, most=_MOST)
    args.hosts = str(num_hosts(args.write, on, given))
    job = _job(args, run)
    found = ClusterJob(
        run.plan.model.name,
        args.run,
        to_json(run.plan),
        tuple(_words(args)),
        (run.data, run.out),
        os.getcwd(),
        job.num_hosts,
        on,
        job.leader[1] or _PORT,
        args.cpu,
        args.image,
        args.claim,
    )
    text = FORMS[args.write](found)
    if args.json:
        print_json("launch", {"form": args.write, "text": text})
    else:
        print(text, end="")
    return 0


def _launch(args: Namespace, job: HostJob) -> int:
    shown = Progress(job.run)
    if not any((job.run.folder / COMPILED).glob("*")):
        shown.say(
            "nothing of this run is compiled yet: each process compiles the step before it begins"
        )
    code = supervise(job, shown.say, shown)
    spent = goodput(job.run.folder)
    if args.json:
        print_json("launch", {"exit": code, "goodput": encode(spent)})
    else:
        print(f"{spent.share:.0%} of {spent.wall_s:.0f} s went into steps that count,"
              f" {spent.attempts} attempts")  # fmt: skip
    sys.stdout.flush()
    return code
