"""`rooflight export`: a plan file in the words of another framework."""

import sys
from dataclasses import asdict

from rooflight.cli.flags import add_choice
from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.interop.export import export_plan
from rooflight.interop.framework import FRAMEWORKS, Export, FrameworkSpec, load_framework
from rooflight.interop.kubernetes import export_manifest
from rooflight.interop.roles import row_of_plan
from rooflight.interop.serving import SERVERS, export_commands, read_fleet, servers
from rooflight.plan.file.record import read_plan
from rooflight.ui.text.table import table

HELP = "a plan as settings of MaxText, Megatron-LM, vLLM and more, and what they lack"

KUBERNETES = "kubernetes"
_SERVING = (*SERVERS, KUBERNETES)
_KINDS = {"schedules": "schedule", "remats": "remat", "recipes": "recipe", "dtypes": "dtype"}


def configure(parser: Parser) -> None:
    parser.add_argument(
        "plan", nargs="?", help="a file of the verb plan (--json), - for the standard input"
    )
    add_choice(
        parser,
        "--to",
        (*FRAMEWORKS, *_SERVING),
        what="framework",
        help="a framework for a plan of training, without a plan what each of our words becomes"
        " there; an engine or kubernetes for a fleet",
    )
    add_choice(
        parser,
        "--engine",
        SERVERS,
        default=SERVERS[0],
        help=f"that the manifest starts ({SERVERS[0]} by default)",
    )
    parser.add_argument(
        "--gateway",
        metavar="NAME",
        help="of the manifest: an InferencePool and a route of this Gateway, not a Service",
    )
    parser.add_argument(
        "--row",
        type=int,
        default=1,
        metavar="NUMBER",
        help="an alternative in place of the plan, by its row in what `plan train` prints",
    )
    parser.set_examples("rooflight export", "rooflight export --to megatron")


def run(args: Namespace) -> int:
    if args.gateway and args.to != KUBERNETES:
        raise UsageError(
            f"--gateway is of a manifest of {KUBERNETES}; it would be ignored",
            hint=f"write --to {KUBERNETES}, or leave out --gateway",
        )
    if args.to in _SERVING:
        return _fleet(args)
    if args.plan is None:
        return _words(load_framework(args.to), args) if args.to else _list(args)
    if args.to is None:
        raise UsageError(
            "no framework to export to", hint=f"add --to {' or --to '.join(FRAMEWORKS)}"
        )
    found = export_plan(row_of_plan(read_plan(args.plan), args.row), to=args.to)
    if args.json:
        print_json("export", _document(found))
    else:
        print(found.text, end="")
        sys.stdout.flush()
        lost = sum(loss.is_material for loss in found.losses)
        if lost:
            count = "1 part of the plan is" if lost == 1 else f"{lost} parts of the plan are"
            print(f"{count} lost; the head of the file says which", file=sys.stderr)
    return 0 if found.is_faithful else 1


def _fleet(args: Namespace) -> int:
    """A fleet of `plan serve --json`."""
    if args.plan is None:
        raise UsageError(
            "no fleet to export", hint="write one with `rooflight plan serve ... --json`"
        )
    fleet = read_fleet(args.plan)
    engine = servers()[args.engine if args.to == KUBERNETES else args.to]
    if args.to == KUBERNETES:
        found = export_manifest(fleet, engine, gateway=args.gateway)
    else:
        found = export_commands(fleet, engine)
    if args.json:
        losses = [asdict(loss) for loss in found.losses]
        print_json("export", {"to": found.to, "text": found.text, "losses": losses})
    else:
        print(found.text, end="")
    return 1 if found.losses else 0


def _document(found: Export) -> dict[str, object]:
    return {
        "framework": found.framework.name,
        "commit": found.framework.commit,
        "settings": dict(found.settings),
        "losses": [asdict(loss) for loss in found.losses],
        "text": found.text,
    }


def _list(args: Namespace) -> int:
    every = [load_framework(name) for name in FRAMEWORKS]
    if args.json:
        print_json("export", {"frameworks": [_facts(framework) for framework in every]})
        return 0
    rows = [[f.name, f.commit[:12], f.date, f.repo] for f in every]
    show(f"a plan can be written for {len(every)} frameworks, in their names of a dated commit\n")
    show(table(("--to", "commit", "date", "repository"), rows, align="llll"))
    return 0


def _facts(framework: FrameworkSpec) -> dict[str, object]:
    keys = ("name", "title", "repo", "commit", "date", "files")
    return {key: getattr(framework, key) for key in keys}


def _words(framework: FrameworkSpec, args: Namespace) -> int:
    rows = _rows(framework)
    if args.json:
        keys = ("ours", "theirs", "differs")
        words = [dict(zip(keys, row, strict=True)) for row in rows]
        print_json("export", {**_facts(framework), "words": words})
        return 0
    show(f"our words in {framework.reference}, {framework.files}\n")
    show(table(("ours", "theirs", "which differs"), rows, align="lll"))
    return 0


def _rows(framework: FrameworkSpec) -> list[list[str]]:
    found: list[list[str]] = []
    for row in framework.axes:
        ordered = sorted(row.schemes, key=lambda scheme: (scheme == "ep", scheme))
        schemes = ",".join(f"{scheme}=X" for scheme in ordered)
        theirs = " and ".join(row.keys) or "what the other sizes leave"
        found.append([schemes, theirs, row.differs])
    for key, what in _KINDS.items():
        for name in framework.tables[key]:
            said = ", ".join(k if v is True else f"{k} {v}" for k, v in name.settings.items())
            found.append([f"{what} {name.name}", said or "its default", name.differs])
    return found
