"""Spans of OpenTelemetry, where its API is installed: one a request, child of the caller's.

Who wants them runs the server with an SDK and an exporter of theirs (`opentelemetry-instrument`);
without one a span costs a few microseconds and goes nowhere. Attributes are lengths and times.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

try:
    from opentelemetry import propagate, trace
except ImportError:  # an optional extra
    propagate = trace = None

Attributes = Mapping[str, str | int | float | bool]
Note = Callable[[Attributes], None]


@contextmanager
def request_span(route: str, headers: Mapping[str, str]) -> Generator[Note]:
    """A span while the block runs; what is yielded adds attributes to it."""
    if trace is None or propagate is None:
        yield lambda _: None
        return
    tracer = trace.get_tracer("rooflight.service")
    with tracer.start_as_current_span(
        route,
        context=propagate.extract(headers),
        kind=trace.SpanKind.SERVER,
        record_exception=False,  # messages may hold what clients sent
        set_status_on_exception=False,
    ) as span:
        yield span.set_attributes
