"""Messages between supervisors: one JSON object a line over TCP, from those who know the secret.

The secret is a file of the run's folder, which all hosts share. Each end proves that it knows it
before it is listened to, and every message carries a code of it and of its place in the talk. What
is said can be overheard; it cannot be forged, changed or said again.
"""

import asyncio
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Literal, cast

from rooflight.errors import UsageError

Message = dict[str, object]
SECRET, VARIABLE = "secret", "ROOFLIGHT_SECRET"
_HELLO_S = 10.0  # for a stranger to say who it is
_ASKS, _QUIET_S, _QUESTIONS = "is there", 5.0, 6  # and then it counts as gone
_Role = Literal["leader", "host"]


def run_secret(folder: Path, *, is_leader: bool) -> bytes | None:
    """Of a run, made by its leader; None while there is none."""
    if chosen := os.environ.get(VARIABLE):
        return chosen.encode()
    path = folder / SECRET
    if is_leader and not path.exists():
        made = path.with_name(f"{SECRET}.{os.getpid()}")
        with open(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        made.rename(path)
    try:
        if path.stat().st_mode & 0o077:
            raise UsageError(
                f"{path} can be read by others, who could then command the run",
                hint=f"chmod 600 it, or set {VARIABLE} to the same text on every host",
            )
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}",
            hint=f"run every host as one user, or set {VARIABLE} to the same text on each",
        ) from None


class Connection:
    """One end of a talk between two who have proved that they know the secret."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, role: _Role
    ) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._role: _Role = role
        self._sent = self._received = 0

    def send(self, message: Message) -> None:
        """A peer that is gone is noticed by its next reader."""
        body = json.dumps(message)
        _write(self._writer, {"body": body, "code": self._code(self._role, self._sent, body)})
        self._sent += 1

    async def receive(self) -> Message | None:
        """The next message; None when the peer is gone, silent or does not speak this.

        A host that lost power or its network hangs up on nobody: a peer that is quiet is asked.
        """
        asked = 0
        while asked < _QUESTIONS:
            try:
                async with asyncio.timeout(_QUIET_S):
                    message = self._proved(await _read(self._reader))
            except TimeoutError:
                asked += 1
                self.send({_ASKS: True})
                continue
            if message is None or _ASKS not in message:
                return message
            asked = 0
            if message[_ASKS]:
                self.send({_ASKS: False})
        return None

    def _proved(self, found: Message | None) -> Message | None:
        body, code = (found.get("body"), found.get("code")) if found else (None, None)
        if not (isinstance(body, str) and isinstance(code, str)):
            return None
        peer: _Role = "host" if self._role == "leader" else "leader"
        if not _is_same(code, self._code(peer, self._received, body)):
            return None
        self._received += 1
        return _parsed(body)

    def close(self) -> None:
        self._writer.close()

    def _code(self, role: _Role, number: int, body: str) -> str:
        return _code(self._key, role, str(number), body)


async def meet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, role: _Role
) -> Connection | None:
    """Proves to the peer that this end knows the secret and asks it to; None if it does not."""
    own = secrets.token_hex(16)
    _write(writer, {"nonce": own})
    try:
        async with asyncio.timeout(_HELLO_S):
            asked = await _read(reader)
            other = str(asked.get("nonce")) if asked else ""
            if not other or other == own:
                return None
            nonces = (own, other) if role == "leader" else (other, own)
            peer: _Role = "host" if role == "leader" else "leader"
            if role == "host":  # who calls proves first
                _write(writer, {"proof": _code(secret, role, *nonces)})
            answer = await _read(reader)
            proof = str(answer.get("proof")) if answer else ""
            if not _is_same(proof, _code(secret, peer, *nonces)):
                return None
            if role == "leader":
                _write(writer, {"proof": _code(secret, role, *nonces)})
    except TimeoutError:
        return None
    return Connection(reader, writer, _code(secret, "key", *nonces).encode(), role)


def _code(key: bytes, *parts: str) -> str:
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _write(writer: asyncio.StreamWriter, message: Message) -> None:
    if not writer.is_closing():
        writer.write((json.dumps(message) + "\n").encode())


async def _read(reader: asyncio.StreamReader) -> Message | None:
    try:
        return _parsed(await reader.readline())
    except (ValueError, OSError):  # a line longer than asyncio takes, a peer that is gone
        return None


def _parsed(text: str | bytes) -> Message | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(Message, found) if isinstance(found, dict) else None
