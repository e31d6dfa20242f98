"""The HTTP server of the explorer: loopback by default, GET and HEAD only, stdlib only.

In: a `Site` and an address. Out: a server with its address; `serve_forever` runs it. Beyond
loopback a key is asked for; the Host header must name this server, so that no page of another
host can read it through a name that it controls.
"""

import base64
import binascii
import hmac
import ipaddress
import sys
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from urllib.parse import unquote, urlsplit

from rooflight import __version__
from rooflight.errors import UsageError
from rooflight.ui.browser.site import Response, Site

_SHORTEST_KEY = 16
_PATIENCE_S = 30.0  # for a client that is silent
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ExploreServer(ThreadingHTTPServer):
    """One site at one address."""

    daemon_threads = True

    def __init__(
        self, site: Site, *, host: str = "127.0.0.1", port: int = 0, key: str = ""
    ) -> None:
        check_key(host, key)
        self.site = site
        self.key = key
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.names = {"localhost", "127.0.0.1", "::1", host.lower()}
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port"
            ) from None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            traceback.print_exc()


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_key(host: str, key: str) -> None:
    """Loopback is for everybody on this machine; anything else needs a key that is long enough."""
    if not key and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, and no key is asked for",
            hint="set ROOFLIGHT_API_KEY, or stay on 127.0.0.1",
        )
    if key and len(key) < _SHORTEST_KEY:
        raise UsageError(
            f"the key has fewer than {_SHORTEST_KEY} characters",
            hint="make one with `openssl rand -hex 24`",
        )


def has_key(authorization: str, key: str) -> bool:
    """Whether a header has the key, as a bearer or as the password that a browser asks for.

    >>> has_key("Bearer 0123456789abcdef", "0123456789abcdef"), has_key("", "0123456789abcdef")
    (True, False)
    """
    scheme, _, secret = authorization.partition(" ")
    given = secret.strip()
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    is_same = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())
    return is_same and scheme.lower() in ("basic", "bearer")


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = f"rooflight/{__version__}"
    sys_version = ""
    timeout = _PATIENCE_S
    wbufsize = -1  # head and body leave together, and at once: else each waits 40 ms for an ACK
    disable_nagle_algorithm = True
    server: ExploreServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._send(self._response())

    def do_HEAD(self) -> None:
        self._send(self._response())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What never becomes a question, in words; another method is no fault of ours."""
        self.close_connection = True
        is_other = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if is_other else HTTPStatus(code)
        self._send(_words(status, "GET and HEAD only" if is_other else message or status.phrase))

    def _response(self) -> Response:
        server = self.server
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows is no request
            return _words(HTTPStatus.BAD_REQUEST, "a question has no body")
        if not server.key and not self._names_us():
            return _words(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
        if server.key and not has_key(self.headers.get("Authorization", ""), server.key):
            return _words(HTTPStatus.UNAUTHORIZED, "a key is needed")
        try:
            parts = urlsplit(self.path)
            path = unquote(parts.path, errors="strict")
        except ValueError:
            return _words(HTTPStatus.BAD_REQUEST, "the path must be UTF-8")
        try:
            return server.site.respond(path, parts.query)
        except Exception:  # the last line of the server: a bug ends in words, not in silence
            traceback.print_exc()
            return _words(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of rooflight; see its terminal")

    def _names_us(self) -> bool:
        """The Host header, without its port, is a name of ours.

        With a key the name does not matter: a browser keeps the key for the name it was given to.
        """
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return False
        return host in self.server.names

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if response.status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="rooflight", charset="UTF-8"')
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for the address."""


def _words(status: HTTPStatus, text: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", f"{text}\n".encode())
