"""Both pages of metrics by Prometheus' own rules: in Python, and by `promtool check metrics` where it is installed.

The rules: https://prometheus.io/docs/practices/naming/
"""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import fields

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dunlin.effects import Address
from dunlin.messages.fleet import DispatcherReport, FleetStatus, InstanceReport, KvstoreReport, ManagerReport
from dunlin.messages.fleet import MemberStatus as Member
from dunlin.messages.types import FinishReason
from dunlin.telemetry.metrics import exporter_metrics, metric_families
from dunlin.telemetry.prometheus import render_metrics
from services.dispatcher.doors.calls import DoorCall, RequestMetrics
from services.dispatcher.doors.metrics import AccessLogCollector, DoorMetrics

NOT_BASE = re.compile(
    r"_(s|ms|us|ns|sec|secs|m|min|mins|h|d|kb|mb|gb|kib|mib|gib|milliseconds|minutes|hours|percent)(_|$)"
)
WORDS_OF_TYPES = re.compile(r"_(counter|gauge|histogram|summary)(_|$)")
RESERVED = ("_bucket", "_count", "_sum")


def monitors() -> str:
    members = (
        Member(Address("instance", "i0", 2), instance=InstanceReport()),
        Member(Address("dispatcher", "d0", 3), dispatcher=DispatcherReport()),
        Member(Address("kvstore", "kv", 4), kvstore=KvstoreReport()),
        Member(Address("global_manager", "manager", 5), manager=ManagerReport()),
    )
    return render_metrics([*metric_families(FleetStatus(1, members)), *exporter_metrics(1, 2)]).decode()


def doors() -> str:
    metrics = DoorMetrics()
    metrics.registry.register(AccessLogCollector(lambda: (1, 0)))
    times = iter((0.0, 1.0, 2.0))
    watch = RequestMetrics(metrics, DoorCall("http", "/v1/completions", 0.0), 4, lambda: next(times))
    watch.on_dispatched(0.5)
    watch.on_tokens(1)
    watch.on_tokens(1)
    watch.on_finished(FinishReason.LENGTH)
    metrics.count_refusal("grpc", "too_long", "")
    metrics.count_call("http", "other", "404")
    return metrics.page().decode()


PAGES = {"the monitor's": monitors, "a dispatcher's": doors}
each_page = pytest.mark.parametrize("page", PAGES)


def complaints(text: str) -> list[str]:
    found = list(text_string_to_metric_families(text))
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    return [complaint for metric in found for complaint in _of(metric)] + [
        f"{name} stands there twice" for name in sorted({name for name in names if names.count(name) > 1})
    ]


def _of(metric: Metric) -> Iterable[str]:
    # The parser takes the suffix off a counter that has one; the samples keep it.
    sampled = {sample.name for sample in metric.samples}
    if not metric.documentation.strip():
        yield f"{metric.name} has no help"
    if metric.type in ("unknown", "untyped"):
        yield f"{metric.name} has no type"
    if metric.type == "counter" and not all(name.endswith("_total") for name in sampled):
        yield f"{metric.name} is a counter without _total"
    if metric.type != "counter" and metric.name.endswith("_total"):
        yield f"{metric.name} is no counter and ends in _total"
    if metric.type != "histogram" and metric.name.endswith(RESERVED):
        yield f"{metric.name} ends like a part of a histogram"
    if NOT_BASE.search(metric.name) or WORDS_OF_TYPES.search(metric.name):
        yield f"{metric.name} has a unit that is no base unit, or its type, in its name"
    if metric.name != metric.name.lower() or ":" in metric.name:
        yield f"{metric.name} is not in snake_case"


@each_page
def test_the_page_keeps_the_rules(page: str) -> None:
    assert complaints(PAGES[page]()) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# HELP a_b \n# TYPE a_b gauge\na_b 1\n", "no help"),
        ("# HELP a_s_total x\n# TYPE a_s_total counter\na_s_total 1\n", "no base unit"),
        ("# HELP a_count x\n# TYPE a_count gauge\na_count 1\n", "part of a histogram"),
        ("# HELP a_total x\n# TYPE a_total gauge\na_total 1\n", "is no counter"),
        ("a_b 1\n", "no type"),
        ("# HELP aB x\n# TYPE aB gauge\naB 1\n", "snake_case"),
    ],
)
def test_a_page_that_breaks_a_rule_is_found(text: str, complaint: str) -> None:
    assert any(complaint in found for found in complaints(text))


@each_page
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_has_nothing_to_say(page: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=PAGES[page](), capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_family_is_on_both_pages_but_the_process_itself() -> None:
    named = [{metric.name for metric in text_string_to_metric_families(page())} for page in PAGES.values()]
    both = named[0] & named[1]
    assert both
    assert all(name.startswith("process_") for name in both)


def test_each_page_tells_of_its_process() -> None:
    for page in PAGES.values():
        names = {metric.name for metric in text_string_to_metric_families(page())}
        assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= names


def test_the_monitors_page_here_has_every_report() -> None:
    text = monitors()
    kinds = (InstanceReport, DispatcherReport, KvstoreReport, ManagerReport)
    for kind, role in zip(kinds, ("instance", "dispatcher", "kvstore", "manager"), strict=True):
        assert len(re.findall(rf"^# TYPE dunlin_{role}_", text, re.MULTILINE)) >= len(fields(kind)) - 8
