"""What the front has done, as Prometheus reads it."""

from collections import Counter
from collections.abc import Iterable, Iterator

from rooflight.serve.router.fleet import ReplicaState

_METRICS = {
    "requests_total": "answers by status",
    "retries_total": "requests that went to one more replica, by reason",
    "spilled_total": "requests that the owner of their prefix had no room for",
    "broken_streams_total": "streams that ended in an error event",
    "clients_gone_total": "clients that left before the end of their answer",
    "up": "1 if a replica gets requests",
    "in_flight": "requests that a replica has from here",
    "waiting": "requests that wait at a replica, as it says",
}


class Counters:
    """Counters by name and label, such as `status="200"`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, label: str = "") -> None:
        self._counts[name, label] += 1

    def text(self, replicas: Iterable[ReplicaState]) -> str:
        """The page that a scraper reads, metric by metric."""
        values = dict(self._counts)
        for replica in replicas:
            label = f'replica="{replica.url}"'
            values["up", label] = int(replica.is_up)
            values["in_flight", label] = replica.in_flight
            values["waiting", label] = replica.waiting
        return "".join(line for name in _METRICS for line in _lines(name, values))


def _lines(name: str, values: dict[tuple[str, str], int]) -> Iterator[str]:
    metric = f"rooflight_router_{name}"
    yield f"# HELP {metric} {_METRICS[name]}\n"
    yield f"# TYPE {metric} {'counter' if name.endswith('_total') else 'gauge'}\n"
    for (which, label), value in values.items():
        if which == name:
            yield f"{metric}{{{label}}} {value}\n" if label else f"{metric} {value}\n"
