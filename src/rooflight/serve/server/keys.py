"""API keys: who asks, how much they may, and whose cache they share.

A key file has a line for each key: a name, the key, and optional limits.

    alice  sk-...  requests=60 tokens=100000 concurrent=8
"""

import hmac
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rooflight.errors import ParseError, UsageError
from rooflight.serve.server.problem import ApiError

_LEAST_CHARACTERS = 16
_MINUTE = 60.0
_LIMITS = ("requests", "tokens", "concurrent")
_NAME = re.compile(r"[\w.-]{1,64}")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Key:
    """One client; the key itself is kept as its hash only."""

    name: str
    digest: bytes
    requests: float = math.inf  # a minute
    tokens: float = math.inf  # a minute, prompts and new ones
    concurrent: float = math.inf  # requests at once

    @property
    def salt(self) -> bytes:
        """Of the prefix cache; the same after a restart, and of no use to find the key."""
        return sha256(b"prefix cache" + self.digest).digest() if self.digest else b""


NOBODY = Key("anonymous", b"")  # where no keys are asked for


def make_key(name: str, secret: str, **limits: float) -> Key:
    if len(secret) < _LEAST_CHARACTERS:
        raise UsageError(
            f"the key of {name} has fewer than {_LEAST_CHARACTERS} characters",
            hint="make one with `openssl rand -hex 24`",
        )
    return Key(name, sha256(secret.encode()).digest(), **limits)


def find_key(keys: Iterable[Key], authorization: str) -> Key | None:
    """The key of an Authorization header; every key is compared, each in constant time."""
    scheme, _, secret = authorization.partition(" ")
    digest = sha256(secret.strip().encode("utf-8", "surrogateescape")).digest()
    found: Key | None = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found if scheme.lower() == "bearer" else None


def read_keys(path: Path) -> tuple[Key, ...]:
    """A key file, which nobody but its owner may read."""
    try:
        mode, lines = path.stat().st_mode, path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read keys from {path}: {error}", hint=_EXAMPLE) from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(
            f"others than its owner may read {path}", hint=f"run `chmod 600 {path}` first"
        )
    words = [line.split() for line in lines if line.split() and not line.startswith("#")]
    keys = tuple(_read_line(line) for line in words)
    if not keys or len({key.name for key in keys}) < len(keys):
        raise ParseError(f"{path} has no key, or two of one name", hint=_EXAMPLE)
    return keys


_EXAMPLE = "write a line for each key, such as `alice KEY requests=60 tokens=100000`"


def _read_line(words: Sequence[str]) -> Key:
    if len(words) < 2 or not _NAME.fullmatch(words[0]):
        raise ParseError("a line of the key file is not a name and a key", hint=_EXAMPLE)
    limits: dict[str, float] = {}
    for word in words[2:]:
        name, _, count = word.partition("=")
        if name not in _LIMITS or not count.isdecimal() or not 1 <= int(count) <= 10**12:
            raise ParseError(
                f"{words[0]} has a limit that is none of {', '.join(_LIMITS)}", hint=_EXAMPLE
            )
        limits[name] = float(count)
    return make_key(words[0], words[1], **limits)


def environment_key() -> tuple[Key, ...]:
    """The one key of ROOFLIGHT_API_KEY, if it is set."""
    secret = os.environ.get("ROOFLIGHT_API_KEY")
    return (make_key("default", secret),) if secret else ()


class Bucket:
    """A limit a minute: full at first, refilled evenly, never above a minute's worth."""

    __slots__ = ("_clock", "_level", "_most", "_then")

    def __init__(self, a_minute: float, clock: Clock = time.monotonic) -> None:
        self._most = a_minute
        self._level = a_minute
        self._clock = clock
        self._then = clock()

    def wait(self, amount: float) -> float:
        """Seconds until this much is there; inf if it never will be."""
        if self._most == math.inf:
            return 0.0
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._then) * self._most / _MINUTE)
        self._then = now
        if amount > self._most:
            return math.inf
        return max(0.0, (amount - self._level) * _MINUTE / self._most)

    def take(self, amount: float) -> None:
        self._level -= amount


class Allowance:
    """What one key has left: requests and tokens per minute, requests at once."""

    __slots__ = ("_key", "_requests", "_tokens", "num_running")

    def __init__(self, key: Key, clock: Clock = time.monotonic) -> None:
        self._key = key
        self._requests = Bucket(key.requests, clock)
        self._tokens = Bucket(key.tokens, clock)
        self.num_running = 0

    def enter(self) -> None:
        """One more request, or when to come again."""
        if self.num_running >= self._key.concurrent:
            raise _limited("concurrent", "requests at once", self._key.concurrent, 1)
        wait = self._requests.wait(1)
        if wait > 0:
            raise _limited("requests", "requests per minute", self._key.requests, wait)
        self._requests.take(1)
        self.num_running += 1

    def leave(self) -> None:
        self.num_running -= 1

    def spend(self, tokens: int) -> None:
        """The tokens that a request may use, or when they will be there."""
        wait = self._tokens.wait(tokens)
        if wait == math.inf:
            limit = f"{self._key.tokens:.0f} a minute"
            raise ApiError(400, "too_large", f"{tokens} tokens, above this key's {limit}")
        if wait > 0:
            raise _limited("tokens", "tokens per minute", self._key.tokens, wait)
        self._tokens.take(tokens)

    def give_back(self, tokens: int) -> None:
        """Those that were not used."""
        self._tokens.take(-tokens)


def _limited(what: str, unit: str, limit: float, wait: float) -> ApiError:
    text = f"this key is above its limit of {limit:.0f} {unit}"
    return ApiError(429, f"{what}_limit", text, retry_after=wait)
