"""A replica that makes no progress: what it has ends in an error, long before the timeout."""

import threading
import time

from .fleet_of_processes import Got, ask_all, routed, until


def test_what_a_stuck_replica_has_ends_in_an_error_and_a_draining_one_may_finish() -> None:
    with routed(1) as (router, (replica,)):
        got: list[Got] = []

        def ask(gap_s: float, tokens: int, **more: bool) -> threading.Thread:
            replica.behave(tokens=tokens, gap_s=gap_s)
            thread = threading.Thread(target=lambda: got.extend(ask_all(router.url, ["p"])))
            thread.start()
            until(lambda: any(entry["end"] == "open" for entry in replica.log()))
            replica.behave(**more)
            return thread

        ask(0.5, 14, is_ready=False).join()  # as if it drained: 7 s
        assert got[-1].end == "done" and len(got[-1].texts) == 14
        replica.behave()
        until(lambda: ask_all(router.url, ["q"])[0].end == "done")
        start = time.monotonic()
        ask(60, 3, is_ready=False, is_live=False).join()
        assert got[-1].end == "replica_broke"
        assert 4 < time.monotonic() - start < 15
