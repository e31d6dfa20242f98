"""`ServerMetrics`: what Prometheus scrapes, under the names that gateways and dashboards know.

Names that begin with `vllm:` are those the Kubernetes inference gateway reads; ours begin with
`rooflight:`.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from rooflight.serve.engine.stats import EngineStats

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
Reading = Callable[[], float]


class _EngineCollector(Collector):
    """Read at each scrape: never a stale copy."""

    def __init__(
        self, model: str, stats: Callable[[], EngineStats], own: dict[str, Reading]
    ) -> None:
        self._model = model
        self._stats = stats
        self._own = own

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for name, text, value in (
            ("vllm:num_requests_waiting", "Requests in the queue.", stats.num_waiting),
            ("vllm:num_requests_running", "Requests that hold a row.", stats.num_running),
            ("vllm:kv_cache_usage_perc", "Used blocks of KV cache, 0 to 1.", stats.kv_usage),
        ):
            yield self._gauge(name, text, value)
        for name, text, value in (
            ("vllm:prompt_tokens", "Prompt tokens taken in.", stats.prompt_tokens),
            ("vllm:generation_tokens", "Tokens made.", stats.generated_tokens),
            ("vllm:prefix_cache_queries", "Tokens looked up.", stats.prefix_queries),
            ("vllm:prefix_cache_hits", "Tokens found in the cache.", stats.prefix_hits),
            ("vllm:num_preemptions", "Requests sent back to the queue.", stats.preemptions),
            ("rooflight:restored_blocks", "Blocks from host memory.", stats.restored_blocks),
            (
                "rooflight:compilations_after_ready",
                "Compilations on the hot path; 0 unless there is a bug.",
                stats.compilations_after_ready,
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        sizes = {"block_size": stats.block_tokens, "num_gpu_blocks": stats.num_blocks}
        info = InfoMetricFamily("vllm:cache_config", "Sizes of the KV cache.")
        info.add_metric([], {name: str(size) for name, size in sizes.items()})
        yield info
        for name, reading in self._own.items():
            yield self._gauge(f"rooflight:{name}", name.replace("_", " "), reading())

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, text, labels=["model_name"])
        gauge.add_metric([self._model], value)
        return gauge


class ServerMetrics:
    """The metrics of one server; `own` are further gauges of ours, by name."""

    def __init__(
        self, model: str, stats: Callable[[], EngineStats], own: dict[str, Reading]
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_EngineCollector(model, stats, own))
        self.time_to_first_token = self._seconds(model, "vllm:time_to_first_token_seconds")
        self.inter_token = self._seconds(model, "vllm:inter_token_latency_seconds")
        self.time_per_token = self._seconds(model, "vllm:request_time_per_output_token_seconds")
        self.queue = self._seconds(model, "vllm:request_queue_time_seconds")
        self.prefill = self._seconds(model, "vllm:request_prefill_time_seconds")
        self.predicted_ttft = self._seconds(model, "rooflight:predicted_ttft_seconds")
        self.decode = self._seconds(model, "vllm:request_decode_time_seconds")
        self.end_to_end = self._seconds(model, "vllm:e2e_request_latency_seconds")
        self._success = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._rejected = Counter(
            "rooflight:admission_rejected",
            "Requests refused before any work, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._model = model

    def ended(self, reason: str) -> None:
        self._success.labels(self._model, reason).inc()

    def rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _seconds(self, model: str, name: str) -> Histogram:
        text = name.partition(":")[2].replace("_", " ")
        histogram = Histogram(name, text, ["model_name"], buckets=_SECONDS, registry=self.registry)
        return histogram.labels(model)
