"""The flags that several verbs share: same name, same meaning, same help everywhere."""

import argparse
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any
from urllib.parse import urlsplit

from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import ParseError, UnknownNameError, UsageError
from rooflight.units import parse_count

_LARGEST_BYTES = 10**24  # more than all memory on earth, and still exact enough to print


def keywords(function: FunctionType, args: Namespace, *, but: Sequence[str] = ()) -> Any:
    """The flags that a function takes: its keywords have their names."""
    code = function.__code__
    names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    return {name: getattr(args, name) for name in names if name not in but}


def again(args: Namespace, flags: Sequence[str]) -> list[str]:
    """Of these flags those that were given, as words of another command."""
    given = ((flag, getattr(args, flag.replace("-", "_"))) for flag in flags)
    return [word for flag, value in given if value for word in (f"--{flag}", str(value))]


def add_on(parser: Parser, *, is_needed: bool = True) -> None:
    parser.add_argument(
        "--on",
        required=is_needed,
        metavar="HARDWARE",
        help="chip or slice: v5e, v5p:4x4x8, 2*v5e:16x16; or so many chips: h100:2048, v5p:512",
    )


def add_mesh(parser: Parser) -> None:
    parser.add_argument(
        "--mesh", metavar="AXES", help="mesh axes and sizes: X=4,Y=4, or placed: X=16@x+y,Y=4@z"
    )


def add_dims(parser: Parser) -> None:
    parser.add_argument(
        "--dims", required=True, metavar="SIZES", help="sizes of tensor dims: I=8192,J=8192"
    )


def add_dtype(parser: Parser) -> None:
    parser.add_argument("--dtype", default="bf16", help="element format: bf16 (default), int8, fp8")


def add_bytes(parser: Parser, *, help: str) -> None:
    parser.add_argument("--bytes", required=True, type=_bytes, metavar="COUNT", help=help)


def add_plot(parser: Parser) -> None:
    parser.add_argument("--plot", metavar="FILE.svg", help="write the picture to a file")


def add_verbose(parser: Parser, *, help: str) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help=help)


def one_of(what: str, names: Sequence[str]) -> Callable[[str], str]:
    """An argparse type that accepts one of `names` and has a did-you-mean for the rest."""

    def choose(text: str) -> str:
        if text not in names:
            raise UnknownNameError(what, text, names)
        return text

    return choose


def add_choice(
    parser: Parser,
    flag: str,
    names: Sequence[str],
    *,
    help: str,
    default: str | None = None,
    what: str = "",
) -> argparse.Action:
    """A flag or positional that is one of a few words; completion offers them.

    `what` such a word is called, if not as the flag.
    """
    what = what or flag.lstrip("-").replace("-", " ")
    return parser.add_argument(
        flag,
        type=one_of(what, names),
        choices=names,
        default=default,
        metavar=None if flag.startswith("-") else flag,
        help=help,
    )


def _bytes(text: str) -> int:
    nbytes = parse_count(text, what="--bytes")
    if nbytes > _LARGEST_BYTES:
        raise ParseError(f"--bytes {text!r} is more than 1e24", hint="write 34MB or 1.5e9")
    return nbytes


def server_address(url: str, *, flag: str) -> str:
    """Scheme, host and port, and nothing after them.

    >>> server_address("http://127.0.0.1:8000/", flag="--url")
    'http://127.0.0.1:8000'
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_good = is_good and parts.path in ("", "/") and not parts.query and "@" not in url
    except ValueError:
        is_good, parts = False, None
    if parts is None or not is_good:
        raise UsageError(
            f"{flag} {url!r} is not the address of a server",
            hint=f"write {flag} http://127.0.0.1:8000, without a path",
        )
    return f"{parts.scheme}://{parts.netloc}"
