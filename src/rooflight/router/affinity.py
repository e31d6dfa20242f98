"""What requests share: a key from the beginning of a prompt or of a conversation.

A conversation is known by its messages up to the first of the user: its later turns find the cache
of the earlier ones, while different ones under one system prompt spread. A plain prompt is known by
its first bytes. Only the beginning is read, for a router must not stop for megabytes of JSON; a
wrong guess costs a cached prefix, never an answer.
"""

import json
import re
from hashlib import blake2b
from typing import Any, cast  # Any: JSON of a client

_FIELD = re.compile(rb'"(prompt|messages)"\s*:\s*')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"]{0,200})"')
_PROMPT_BYTES = 2048  # about 512 tokens of text
_MESSAGES_BYTES = 1 << 16
_MOST_MESSAGES = 8
_BETWEEN = re.compile(r"[\s,\[]*")
_DECODER = json.JSONDecoder()


def prefix_key(body: bytes, authorization: str) -> bytes:
    """Equal for requests of one API key to one model that begin alike.

    >>> first = b'{"messages": [{"role": "user", "content": "Hi"}], "n": 1}'
    >>> later = b'{"messages":[{"role":"user","content":"Hi"}, {"role":"assistant"}], "seed": 7}'
    >>> prefix_key(first, "") == prefix_key(later, "") != prefix_key(first, "Bearer x")
    True
    """
    model = _MODEL.search(body[:_MESSAGES_BYTES])
    digest = blake2b(digest_size=16)
    parts = (authorization.encode("utf-8", "surrogateescape"), model[1] if model else b"")
    for part in (*parts, _beginning(body)):
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()


def _beginning(body: bytes) -> bytes:
    field = _FIELD.search(body)
    if field is None:
        return body[:_PROMPT_BYTES]
    start = field.end()
    if field[1] == b"prompt":
        return body[start : start + _PROMPT_BYTES]
    return _conversation(body[start : start + _MESSAGES_BYTES].decode("utf-8", "replace"))


def _conversation(text: str) -> bytes:
    """The messages up to the first of the user, or what can be read of them."""
    at, heads = 0, list[str]()
    while len(heads) < _MOST_MESSAGES:
        between = _BETWEEN.match(text, at)
        assert between is not None  # it may be empty
        try:
            message, at = _DECODER.raw_decode(text, between.end())
        except (ValueError, RecursionError):
            heads.append(text[at : at + _PROMPT_BYTES])
            break
        heads.append(json.dumps(message, sort_keys=True))
        if isinstance(message, dict) and cast(dict[str, Any], message).get("role") == "user":
            break
    return "".join(heads).encode("utf-8", "surrogatepass")
