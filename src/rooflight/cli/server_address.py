"""The address of a server, as typed after `--url` or `--replica`."""

from urllib.parse import urlsplit

from rooflight.errors import UsageError


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
