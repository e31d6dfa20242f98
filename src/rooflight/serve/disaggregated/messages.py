"""What a server that generates and one that prefills for it say to each other: JSON, within bounds.

    order -> first -> (read -> parcel -> taken) for each group of layers -> the end of the talk

Each message is one text of a WebSocket; the numbers of a parcel follow it as binary messages. Both
ends read with the fields that requests are read with: what does not fit ends the talk.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from rooflight.serve.disaggregated.transfer import Parcel
from rooflight.serve.engine.request import Delta, EngineRequest, Sampling, TokenLogprobs
from rooflight.serve.server.body import parse_json
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.fields import Fields, Integer, Items, Real, Text
from rooflight.serve.server.problem import invalid

MOST_LEASE_S = 120.0
_MOST_GROUPS, _MOST_PARTS, _MOST_BYTES = 4096, 16, 1 << 40
_ANY = Real(-1e30, 1e30)


class Order(NamedTuple):
    """A prompt to compute, and how long its KV is to be kept."""

    fingerprint: str
    job: EngineRequest
    lease_s: float


class First(NamedTuple):
    """The token that a prompt made, and in how many parts its KV can be had."""

    token: int
    logprobs: TokenLogprobs | None
    num_groups: int


def write_order(job: EngineRequest, fingerprint: str, lease_s: float) -> str:
    s = job.sampling
    return json.dumps(
        {
            "fingerprint": fingerprint,
            "prompt": job.prompt,
            "sampling": [s.temperature, s.top_p, s.top_k, s.seed],
            "logprobs": job.logprobs,
            "salt": job.salt.hex(),
            "lease_s": lease_s,
        }
    )


def read_order(text: str, bounds: Bounds, id: int) -> Order:
    found = _order(bounds).read(parse_json(text.encode()))
    temperature, top_p, top_k, seed = found["sampling"]
    try:
        salt = bytes.fromhex(found["salt"])
    except ValueError:
        raise invalid("salt", "not hexadecimal") from None
    job = EngineRequest(
        id,
        tuple(found["prompt"]),
        1,
        Sampling(temperature, top_p, int(top_k), int(seed)),
        logprobs=found["logprobs"],
        salt=salt,
    )
    return Order(found["fingerprint"], job, found["lease_s"])


def _order(bounds: Bounds) -> Fields:
    members = {
        "fingerprint": Text(64),
        "prompt": Items(Integer(0, bounds.vocab - 1), bounds.max_model_tokens, least=1),
        "sampling": Items(Real(0, 2**31 - 1), 4, least=4),
        "logprobs": Integer(0, bounds.max_logprobs),
        "salt": Text(64),
        "lease_s": Real(0.001, MOST_LEASE_S),
    }
    return Fields(members, required=tuple(members))


def write_first(delta: Delta, num_groups: int) -> str:
    found = delta.logprobs[0] if delta.logprobs else None
    return json.dumps(
        {
            "token": delta.tokens[0],
            "logprob": None if found is None else found.logprob,
            "top": [] if found is None else list(found.top.items()),
            "num_groups": num_groups,
        }
    )


def read_first(text: str, bounds: Bounds) -> First:
    token = Integer(0, bounds.vocab - 1)
    members = {
        "token": token,
        "logprob": _ANY,
        "top": Items(Items(_ANY, 2, least=2), bounds.max_logprobs),
        "num_groups": Integer(1, _MOST_GROUPS),
    }
    found = Fields(members, ("token", "top", "num_groups")).read(parse_json(text.encode()))
    logprobs = None
    if found["logprob"] is not None:
        top = {int(token): chance for token, chance in found["top"]}
        logprobs = TokenLogprobs(found["logprob"], top)
    return First(found["token"], logprobs, found["num_groups"])


def write_step(*, read: int | None = None, taken: int | None = None) -> str:
    return json.dumps({"read": read, "taken": taken})


def read_step(text: str, num_groups: int) -> tuple[int | None, int | None]:
    """The group that is to be read, and one that was taken."""
    group = Integer(0, num_groups - 1)
    found = Fields({"read": group, "taken": group}).read(parse_json(text.encode()))
    return found["read"], found["taken"]


def write_parcel(group: int, parcel: Parcel) -> str:
    """Its parts follow."""
    found = {"group": group, "address": parcel.address, "number": parcel.number}
    return json.dumps({**found, "sizes": [len(part) for part in parcel.parts]})


def read_parcel(text: str) -> tuple[int, Parcel, Sequence[int]]:
    """Of which group it is, without its parts, and their sizes."""
    members = {
        "group": Integer(0, _MOST_GROUPS),
        "address": Text(256),
        "number": Integer(0, 1 << 62),
        "sizes": Items(Integer(0, _MOST_BYTES), _MOST_PARTS),
    }
    found = Fields(members, required=tuple(members)).read(parse_json(text.encode()))
    return found["group"], Parcel(found["address"], found["number"]), found["sizes"]
