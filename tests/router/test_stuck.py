"""A replica that makes no progress: what it has ends in an error, without its help."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from .fleet_of_processes import Got, ask_all, routed, until

STUCK = 5  # probes in a row


def test_what_a_stuck_replica_has_ends_in_an_error_and_a_draining_one_may_finish() -> None:
    with routed(1) as (router, (replica,)), ThreadPoolExecutor() as pool:

        @contextmanager
        def asked(**more: bool) -> Generator[list[Got]]:
            """An answer that the replica holds back while it behaves in another way."""
            replica.behave(holds=True)
            got: list[Got] = []
            answer = pool.submit(ask_all, router.url, ["p"])
            until(lambda: replica.num_open() == 1)
            replica.behave(holds=True, **more)
            yield got
            got += answer.result()

        with asked(is_ready=False) as drained:
            until(lambda: replica.num_probes() > STUCK + 1)
            replica.behave()
        assert drained[0].end == "done" and len(drained[0].texts) == 5
        until(lambda: ask_all(router.url, ["q"])[0].end == "done")
        with asked(is_ready=False, is_live=False) as broken:
            pass
        assert broken[0].end == "replica_broke" and len(broken[0].texts) == 1
        assert replica.num_probes() >= STUCK
