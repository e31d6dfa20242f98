"""What a server understands beyond the plain request, found by asking it.

In: the address of an OpenAI-compatible server. Out: a `Dialect`. Most servers take token ids as a
prompt and `ignore_eos`; both make lengths exact, so they are tried first.
"""

import json
from collections.abc import Sequence
from typing import Any  # JSON of a foreign server

import aiohttp

from rooflight.bench.stream import ask
from rooflight.bench.target import Dialect, Target
from rooflight.errors import RooflightError, UsageError

_FIRST_ASK_S = 120.0  # a server may compile on its first request
_REFUSED = ("http 400", "http 422")
_HINT = "the server must be up, with /v1/completions; --key-env NAME if it wants a key"


async def learn(session: aiohttp.ClientSession, target: Target, ids: Sequence[int]) -> Dialect:
    """Asks for the served model unless named, then for two tokens in each way till one is taken."""
    name = target.model or await _served(session, target.url)
    words = ""
    for takes_ids in (True, False):
        for ignores_eos in (True, False):
            dialect = Dialect(name, takes_ids, ignores_eos)
            body = dialect.body(ids, 2)
            answer = await ask(session, target.completions, body, timeout_s=_FIRST_ASK_S)
            if not answer.error:
                return dialect
            words = f"{answer.error}: {answer.words}"
            if answer.error not in _REFUSED:
                raise RooflightError(f"{target.url} does not answer: {words}", hint=_HINT)
    raise UsageError(f"{target.url} refuses every kind of prompt: {words}", hint=_HINT)


async def _served(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(f"{url}/v1/models") as response:
            document: Any = json.loads(await response.content.read(1 << 20))
        return str(document["data"][0]["id"])
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        raise RooflightError(
            f"{url}/v1/models names no model: {type(error).__name__}: {error}", hint=_HINT
        ) from None
