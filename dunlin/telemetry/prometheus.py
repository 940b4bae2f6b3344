"""Families of metrics as a Prometheus page. Knows no report."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dunlin.telemetry.metrics import MetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Families(Collector):
    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._families)


def render_metrics(families: Iterable[MetricFamily]) -> bytes:
    """The page in the text format that `CONTENT_TYPE` names, `process_*` of this process included."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(list(families)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _metric(family: MetricFamily) -> Metric:
    names = [name for name, _ in family.samples[0].labels]
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(family.name, family.help, labels=names)
    for sample in family.samples:
        metric.add_metric([value for _, value in sample.labels], sample.value)
    return metric
