"""The dispatcher's metrics page for Prometheus: what the doors measured, with the core host's clock.

The core's own counters are on the monitor's page only, so that scraping both counts nothing twice.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dunlin.messages.types import FinishReason, RequestClass

FIRST_TOKEN_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
EACH_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 7200.0)
QUEUE_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
TOKEN_BUCKETS = (1, 8, 32, 128, *(1 << power for power in range(9, 21)))

MAX_TENANT_LABELS = 100
OTHER_TENANTS = "_other"
"""The label of known tenants beyond the first `MAX_TENANT_LABELS`: ten thousand labels would make the page unusable."""

REQUEST_LABELS = ("door", "class", "tenant")


@dataclass(frozen=True, slots=True)
class DocumentedMetric:
    """One line of the table in docs/metrics.md. `vllm` is the nearest metric of vLLM, "" where it has none."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    vllm: str = ""


COUNTERS = (
    DocumentedMetric(
        "dunlin_requests_total",
        "counter",
        (*REQUEST_LABELS, "finish"),
        "requests that ended, by how: stop, length, cancelled, deadline, error, too_long",
        "vllm:request_success_total",
    ),
    DocumentedMetric(
        "dunlin_requests_refused_total",
        "counter",
        ("door", "code", "tenant"),
        "calls that were not taken, by the kind of their error",
    ),
    DocumentedMetric(
        "dunlin_calls_total",
        "counter",
        ("door", "path", "status"),
        "calls that were answered, by HTTP status (499: the client left) or gRPC code",
        "http_requests_total",
    ),
    DocumentedMetric(
        "dunlin_prompt_tokens_total",
        "counter",
        REQUEST_LABELS,
        "prompt tokens of requests whose first token came",
        "vllm:prompt_tokens_total",
    ),
    DocumentedMetric(
        "dunlin_generated_tokens_total",
        "counter",
        REQUEST_LABELS,
        "tokens delivered",
        "vllm:generation_tokens_total",
    ),
    DocumentedMetric(
        "dunlin_connections_refused_total",
        "counter",
        ("kind",),
        "connections to the HTTP door that were refused, or closed for what they did",
    ),
)
HISTOGRAMS = {
    "first_token": (
        DocumentedMetric(
            "dunlin_time_to_first_token_seconds",
            "histogram",
            REQUEST_LABELS,
            "TTFT: from the call's arrival to the first token",
            "vllm:time_to_first_token_seconds",
        ),
        FIRST_TOKEN_BUCKETS_S,
    ),
    "each_token": (
        DocumentedMetric(
            "dunlin_time_per_output_token_seconds",
            "histogram",
            REQUEST_LABELS,
            "TPOT: mean time between a request's tokens after the first",
            "vllm:request_time_per_output_token_seconds",
        ),
        EACH_TOKEN_BUCKETS_S,
    ),
    "duration": (
        DocumentedMetric(
            "dunlin_request_duration_seconds",
            "histogram",
            REQUEST_LABELS,
            "from the call's arrival to the request's end",
            "vllm:e2e_request_latency_seconds",
        ),
        REQUEST_BUCKETS_S,
    ),
    "queue": (
        DocumentedMetric(
            "dunlin_request_queue_time_seconds",
            "histogram",
            REQUEST_LABELS,
            "from the call's arrival to the first dispatch to an instance",
            "vllm:request_queue_time_seconds",
        ),
        QUEUE_BUCKETS_S,
    ),
    "prompt": (
        DocumentedMetric(
            "dunlin_request_prompt_tokens",
            "histogram",
            REQUEST_LABELS,
            "tokens of the prompt, of requests that ended",
            "vllm:request_prompt_tokens",
        ),
        TOKEN_BUCKETS,
    ),
    "generated": (
        DocumentedMetric(
            "dunlin_request_generated_tokens",
            "histogram",
            REQUEST_LABELS,
            "tokens delivered, of requests that ended",
            "vllm:request_generation_tokens",
        ),
        TOKEN_BUCKETS,
    ),
}
ACCESS_LOG_COUNTERS = (
    DocumentedMetric("dunlin_access_log_lines_total", "counter", (), "lines written to the access log (only with it)"),
    DocumentedMetric(
        "dunlin_access_log_dropped_total", "counter", (), "lines that it had no room for, or could not write"
    ),
)

TENANT_WEIGHT = DocumentedMetric(
    "dunlin_tenant_weight",
    "gauge",
    ("tenant",),
    "the tenant's weight when tenants share what batch work gets, of tenants that have a label of their own",
)


def documented_metrics() -> list[DocumentedMetric]:
    """Every metric of this page except `process_*`; the table in `docs/metrics.md` is checked against it."""
    return [*COUNTERS, *(found for found, _ in HISTOGRAMS.values()), *ACCESS_LOG_COUNTERS, TENANT_WEIGHT]


class DoorMetrics:
    """Owns one Prometheus registry; a process may have several. `knows` tells whether a tenant is in the file."""

    def __init__(self, knows: Callable[[str], bool] = lambda tenant: False) -> None:
        self.registry = CollectorRegistry()
        self._knows = knows
        self._tenants: set[str] = set()
        ProcessCollector(registry=self.registry)
        made = [Counter(one.name, one.text, one.labels, registry=self.registry) for one in COUNTERS]
        self._requests, self._refused, self._calls, self._prompt, self._generated, self._connections = made
        self._histograms = {
            name: Histogram(one.name, one.text, one.labels, buckets=buckets, registry=self.registry)
            for name, (one, buckets) in HISTOGRAMS.items()
        }

    def labels(self, door: str, request_class: RequestClass, tenant: str) -> tuple[str, str, str]:
        """The values of `REQUEST_LABELS` for a request."""
        return door, request_class.name.lower(), self.tenant_label(tenant)

    def tenant_label(self, tenant: str) -> str:
        """The label of a tenant; "" for one that is not in the file of tenants, since clients can send any name."""
        if tenant in self._tenants:
            return tenant
        if not tenant or not self._knows(tenant):
            return ""
        if len(self._tenants) >= MAX_TENANT_LABELS:
            return OTHER_TENANTS
        self._tenants.add(tenant)
        return tenant

    def labelled_tenants(self) -> list[str]:
        """The tenants that have a label of their own."""
        return sorted(self._tenants)

    def count_refusal(self, door: str, code: str, tenant: str) -> None:
        """Count a call that was refused with an error of kind `code`."""
        self._refused.labels(door, code, self.tenant_label(tenant)).inc()

    def count_call(self, door: str, path: str, status: str) -> None:
        """Count an answered call. `path` is a route or method, never a client's text."""
        self._calls.labels(door, path, status).inc()

    def count_refused_connection(self, kind: str) -> None:
        """Count a connection that was refused, or closed for a fault; `kind` as in `Connections`."""
        self._connections.labels(kind).inc()

    def count_prompt(self, labels: tuple[str, str, str], tokens: int) -> None:
        """Count the tokens of a prompt whose first token came."""
        self._prompt.labels(*labels).inc(tokens)

    def generated_counter(self, labels: tuple[str, str, str]) -> Counter:
        """The counter of delivered tokens; the caller keeps it for the request, since it counts each token."""
        return self._generated.labels(*labels)

    def count_end(self, labels: tuple[str, str, str], finish: FinishReason) -> None:
        """Count a request that ended."""
        self._requests.labels(*labels, finish.name.lower()).inc()

    def observe(self, name: str, labels: tuple[str, str, str], value: float) -> None:
        """Add a value to one of `HISTOGRAMS`, by its key there."""
        self._histograms[name].labels(*labels).observe(value)

    def page(self) -> bytes:
        """The page in Prometheus' text format. Thread-safe: with many tenants it is made in a thread."""
        return generate_latest(_Page(self.registry))


class AccessLogCollector(Collector):
    """Collects the access log's counters; `counts` returns (lines written, lines dropped)."""

    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for one, value in zip(ACCESS_LOG_COUNTERS, self._counts(), strict=True):
            yield CounterMetricFamily(one.name, one.text, value=value)


class TenantWeightCollector(Collector):
    """Collects the weights; `tenants` returns those to name, `weight_of` a tenant's weight."""

    def __init__(self, tenants: Callable[[], Iterable[str]], weight_of: Callable[[str], int]) -> None:
        self._tenants = tenants
        self._weight_of = weight_of

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(TENANT_WEIGHT.name, TENANT_WEIGHT.text, labels=TENANT_WEIGHT.labels)
        for tenant in self._tenants():
            family.add_metric([tenant], self._weight_of(tenant))
        yield family


class _Page(Collector):
    """A registry without the library's `_created` samples, which are a third of the page and unused by Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
