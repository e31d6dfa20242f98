"""Where a server may listen, and what its process needs for thousands of connections."""

import ipaddress
import socket
from urllib.parse import urlsplit

from rooflight.errors import UsageError
from rooflight.serve.server.problem import ApiError

_BACKLOG = 4096


def check_address(host: str, *, has_keys: bool) -> None:
    """Loopback is for everybody on this machine; anything else needs a key."""
    if not (_is_loopback(host) or has_keys):
        raise UsageError(
            f"{host} can be reached from other machines, and no key is asked for",
            hint="give --keys FILE or set ROOFLIGHT_API_KEY, or stay on 127.0.0.1",
        )


def check_name(header: str | None) -> None:
    """Without keys a Host header must name this machine.

    A page of another site can have its name resolved to 127.0.0.1 and then ask as its own
    (DNS rebinding); the header still has that name. Only browsers can be made to; all send one.
    """
    if header is None:
        return
    try:
        host = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        host = ""
    if not _is_loopback(host):
        raise ApiError(
            421, "wrong_host", "without keys this server answers to localhost and 127.0.0.1 only"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int | None, *, default: int = 0) -> socket.socket:
    """A listening socket; a port that is taken is found out before anything is loaded.

    Where none was asked for, another is taken instead.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = host, default if port is None else port
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        if port is None and default:
            return bind(host, None)
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port"
        ) from None
