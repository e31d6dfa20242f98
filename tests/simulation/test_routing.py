"""Requests between clients, a router and replicas that fail: each has one answer, in words."""

from collections.abc import Callable
from typing import Any

import pytest

from rooflight.serve.router import forward
from rooflight.serve.router.forward import Forwarder, ReplicaRefusal
from rooflight.serve.server.problem import ApiError

from .routing import simulate
from .story import first_violation, play, seeds


def test_no_schedule_of_faults_loses_a_request_or_has_two_replicas_begin_it() -> None:
    for seed in seeds(20):
        play(simulate, seed)


_ASK: Any = Forwarder._ask  # pyright: ignore[reportPrivateUsage]


async def _tries_again_what_broke(self: Forwarder, *given: Any) -> object:
    try:
        return await _ASK(self, *given)
    except ApiError as error:
        if error.code == "replica_broke":
            return ReplicaRefusal(0)
        raise


def _passes_parts_on(data: bytes) -> tuple[bytes, bytes]:
    return data, b""


PLANTED = [
    (Forwarder, "_ask", _tries_again_what_broke, "were begun by two replicas"),
    (forward, "whole_events", _passes_parts_on, "the stream ended early"),
]


@pytest.mark.parametrize(("owner", "name", "planted", "words"), PLANTED)
def test_a_planted_bug_is_found(
    owner: object,
    name: str,
    planted: Callable[..., object],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, planted)
    assert words in (first_violation(simulate, range(1000)) or "")
