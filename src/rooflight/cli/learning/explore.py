"""`rooflight explore`: the views of the library in a browser, served from this machine."""

import os
import shlex
import sys
import webbrowser
from pathlib import Path
from threading import Thread

from rooflight.cli.output import print_json, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UnknownNameError, UsageError
from rooflight.ui.browser.server import ExploreServer, check_key
from rooflight.ui.browser.site import Site
from rooflight.ui.browser.view import Files
from rooflight.ui.browser.views import VIEWS
from rooflight.ui.static.folder import write_static
from rooflight.units import whole

HELP = "the same answers in a browser, served from this machine: rooflines, layouts, runs"
_KEY = "ROOFLIGHT_API_KEY"


def configure(parser: Parser) -> None:
    parser.add_argument("view", nargs="?", help=f"opened first: {', '.join(v.name for v in VIEWS)}")
    parser.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    parser.add_argument("--port", default="0", help="0 takes one that is free (default 0)")
    parser.add_argument("--no-open", action="store_true", help="print the address, open no browser")
    parser.add_argument(
        "--open",
        action="append",
        default=[],
        metavar="FILE",
        help="a plan, a verdict, a dump of XLA or the folder of a run, to look at; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="start nothing: print the views")
    to_files = parser.add_argument_group("the explorer as files")
    for name, where, words in (
        ("--static", "FOLDER", "write a site that answers in the visitor's browser"),
        ("--pyodide", "FOLDER", "what `npm pack pyodide` brings, unpacked"),
        ("--numpy", "WHEEL", "Pyodide's numpy, for Train and Serve; untested"),
    ):
        to_files.add_argument(name, metavar=where, help=words)
    parser.set_examples(
        "rooflight explore --dry-run", "rooflight explore train --port 8080 --dry-run"
    )


def run(args: Namespace) -> int:
    names = [view.name for view in VIEWS]
    if args.view and args.view not in names:
        raise UnknownNameError("view", args.view, names)
    port = whole("--port", args.port, least=0, most=65535)
    files = Files(Path.cwd(), tuple(_existing(name) for name in args.open))
    key = os.environ.get(_KEY, "")
    check_key(args.host, key)
    if args.dry_run:
        return _list(args)
    if args.static:
        views = [view for view in VIEWS if view.is_pure]  # the others read files of yours
        write_static(Path(args.static), views, Path(args.pyodide or "."), args.numpy)
        suggest(f"python -m http.server --directory {shlex.quote(args.static)}")
        return 0
    return _serve(args, files, port, key)


def _serve(args: Namespace, files: Files, port: int, key: str) -> int:
    site = Site(VIEWS, files)
    server = ExploreServer(site, host=args.host, port=port, key=key)
    url = f"{server.url}/{args.view or ''}"
    if args.json:
        print_json("explore", {"url": url})
    else:
        print(f"exploring at {url}")
    sys.stdout.flush()
    print("ctrl-C ends it", file=sys.stderr)
    Thread(target=site.warm, daemon=True).start()
    if not args.no_open:
        webbrowser.open(url)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)  # after the ^C of the terminal
    return 0


def _existing(name: str) -> Path:
    if not os.path.exists(name):  # unlike Path, no error for a name that cannot be
        raise UsageError(f"--open {name!r} does not exist", hint="give a file or a folder")
    return Path(name)


def _list(args: Namespace) -> int:
    if args.json:
        views = [{"name": v.name, "title": v.title, "about": v.about} for v in VIEWS]
        print_json("explore", {"views": views})
    else:
        print("\n".join(f"{view.name:<12} {view.about}" for view in VIEWS))
    return 0
