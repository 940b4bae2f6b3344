"""What the doors measured, for Prometheus. The clock is the host's; the core's counts are read, not kept twice."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dunlin.messages.door import Rejection
from dunlin.messages.fleet import DispatcherReport
from dunlin.messages.types import Finish

FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
EACH_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Owns one registry; a process may hold several of them."""

    def __init__(self, report: Callable[[], DispatcherReport]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Reported(report))
        self._requests = Counter(
            "dunlin_requests", "Requests that ended, by how", ("door", "finish"), registry=self.registry
        )
        self._refused = Counter(
            "dunlin_requests_refused", "Requests not taken", ("door", "code"), registry=self.registry
        )
        self._prompt = Counter("dunlin_prompt_tokens", "Tokens of admitted prompts", ("door",), registry=self.registry)
        self._generated = Counter("dunlin_generated_tokens", "Tokens delivered", ("door",), registry=self.registry)
        self._first = _histogram(self.registry, "time_to_first_token", "From submission", FIRST_TOKEN_BUCKETS_S)
        self._each = _histogram(self.registry, "time_per_output_token", "After the first", EACH_TOKEN_BUCKETS_S)
        self._whole = _histogram(self.registry, "request_duration", "From submission to the end", REQUEST_BUCKETS_S)

    def watch(self, door: str, prompt_tokens: int, clock: Callable[[], float]) -> "Watch":
        """Follow one request from its submission on."""
        return Watch(self, door, prompt_tokens, clock)

    def refused(self, door: str, code: Rejection) -> None:
        """One request was not taken."""
        self._refused.labels(door, code.name.lower()).inc()

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def first_token(self, door: str, prompt_tokens: int, seconds: float) -> None:
        """A request's first token came."""
        self._prompt.labels(door).inc(prompt_tokens)
        self._first.labels(door).observe(seconds)

    def generated(self, door: str) -> Counter:
        """The counter of delivered tokens of one door: found once, since it counts each token."""
        return self._generated.labels(door)

    def ended(self, door: str, finish: Finish, seconds: float, each_s: float | None) -> None:
        """A request ended."""
        self._requests.labels(door, finish.name.lower()).inc()
        self._whole.labels(door).observe(seconds)
        if each_s is not None:
            self._each.labels(door).observe(each_s)


class Watch:
    """The times of one request."""

    def __init__(self, metrics: Metrics, door: str, prompt_tokens: int, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._door = door
        self._generated = metrics.generated(door)
        self._prompt_tokens = prompt_tokens
        self._clock = clock
        self._began_s = clock()
        self._first_s = 0.0
        self._tokens = 0
        self._ended = False

    def tokens(self, number: int) -> None:
        """So many tokens came now."""
        if not number:
            return
        if not self._tokens:
            self._first_s = self._clock()
            self._metrics.first_token(self._door, self._prompt_tokens, self._first_s - self._began_s)
        self._tokens += number
        self._generated.inc(number)

    def finished(self, finish: Finish) -> None:
        """It ended now; a second time is not counted."""
        if self._ended:
            return
        self._ended = True
        now_s = self._clock()
        each_s = (now_s - self._first_s) / (self._tokens - 1) if self._tokens > 1 else None
        self._metrics.ended(self._door, finish, now_s - self._began_s, each_s)


class _Reported(Collector):
    """The core's own report: counters where the name ends in `_total`, else gauges."""

    def __init__(self, report: Callable[[], DispatcherReport]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        for name in DispatcherReport.__dataclass_fields__:
            value = float(getattr(report, name))
            text = f"The dispatcher's {name.removesuffix('_total').replace('_', ' ')}"
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"dunlin_dispatcher_{name}", text, value=value)


def _histogram(registry: CollectorRegistry, name: str, text: str, buckets_s: tuple[float, ...]) -> Histogram:
    return Histogram(f"dunlin_{name}_seconds", f"{text}, seconds", ("door",), buckets=buckets_s, registry=registry)
