"""Where a server may listen, and what its process needs for thousands of connections."""

import ipaddress
import resource
import socket

from rooflight.errors import UsageError

_BACKLOG = 4096


def check_address(host: str, *, has_keys: bool) -> None:
    """Loopback is for everybody on this machine; anything else needs a key."""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not (is_loopback or has_keys):
        raise UsageError(
            f"{host} can be reached from other machines, and no key is asked for",
            hint="give --keys FILE or set ROOFLIGHT_API_KEY, or stay on 127.0.0.1",
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; a port that is taken is found out before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port"
        ) from None


def raise_file_limit() -> None:
    """Thousands of connections need as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
