"""The page of a dispatcher: what a request's times become, whose name is a label, and the table that documents it."""

from collections.abc import Callable
from pathlib import Path

from dunlin.messages.types import FinishReason, RequestClass
from services.dispatcher.doors.calls import DoorCall, RequestMetrics
from services.dispatcher.doors.metrics import (
    HISTOGRAMS,
    MAX_TENANT_LABELS,
    OTHER_TENANTS,
    AccessLogCollector,
    DoorMetrics,
    TenantWeightCollector,
    documented_metrics,
)

INTERACTIVE = 'class="interactive",door="http",tenant=""'


def lines(metrics: DoorMetrics) -> list[str]:
    return metrics.page().decode().splitlines()


def watch(metrics: DoorMetrics, clock: Callable[[], float], prompt_tokens: int = 7) -> RequestMetrics:
    return RequestMetrics(metrics, DoorCall("http", "/v1/completions", clock()), prompt_tokens, clock)


def test_the_times_of_one_request() -> None:
    now_s = 10.0
    metrics = DoorMetrics()
    call = DoorCall("http", "/v1/completions", 9.0, arrived_s=9.75)
    one = RequestMetrics(metrics, call, 7, lambda: now_s)
    one.on_dispatched(0.25)
    one.on_dispatched(5.0)  # a later attempt
    one.on_tokens(0)
    now_s = 10.5
    one.on_tokens(1)
    now_s = 12.5
    one.on_tokens(4)
    one.on_finished(FinishReason.STOP)
    one.on_finished(FinishReason.CANCELLED)
    page = lines(metrics)
    for line in (
        f"dunlin_request_queue_time_seconds_sum{{{INTERACTIVE}}} 0.5",
        f"dunlin_request_queue_time_seconds_count{{{INTERACTIVE}}} 1.0",
        f"dunlin_time_to_first_token_seconds_sum{{{INTERACTIVE}}} 0.75",
        f"dunlin_time_per_output_token_seconds_sum{{{INTERACTIVE}}} 0.5",
        f"dunlin_request_duration_seconds_sum{{{INTERACTIVE}}} 2.75",
        f"dunlin_request_prompt_tokens_sum{{{INTERACTIVE}}} 7.0",
        f"dunlin_request_generated_tokens_sum{{{INTERACTIVE}}} 5.0",
        f"dunlin_prompt_tokens_total{{{INTERACTIVE}}} 7.0",
        f"dunlin_generated_tokens_total{{{INTERACTIVE}}} 5.0",
        'dunlin_requests_total{class="interactive",door="http",finish="stop",tenant=""} 1.0',
    ):
        assert line in page
    assert not any('finish="cancelled"' in line for line in page)
    assert (one.first_s, one.queue_s, one.tokens_total) == (0.75, 0.5, 5)


def test_one_token_has_no_time_per_token() -> None:
    metrics = DoorMetrics()
    one = watch(metrics, lambda: 0.0)
    one.on_tokens(1)
    one.on_finished(FinishReason.LENGTH)
    assert not any(line.startswith("dunlin_time_per_output_token_seconds_count") for line in lines(metrics))


def test_the_class_and_a_known_tenant_are_labels() -> None:
    metrics = DoorMetrics(lambda tenant: tenant == "acme")
    for tenant in ("acme", "made-up"):
        call = DoorCall("grpc", "Generate", 0.0, tenant=tenant, request_class=RequestClass.BATCH)
        RequestMetrics(metrics, call, 3, lambda: 0.0).on_finished(FinishReason.STOP)
    metrics.count_refusal("http", "quota", "acme")
    page = lines(metrics)
    assert 'dunlin_requests_total{class="batch",door="grpc",finish="stop",tenant="acme"} 1.0' in page
    assert 'dunlin_requests_total{class="batch",door="grpc",finish="stop",tenant=""} 1.0' in page
    assert 'dunlin_requests_refused_total{code="quota",door="http",tenant="acme"} 1.0' in page


def test_ten_thousand_tenants_are_not_ten_thousand_labels() -> None:
    metrics = DoorMetrics(lambda tenant: True)
    found = {metrics.tenant_label(f"tenant-{number}") for number in range(10_000)}
    assert len(found) == MAX_TENANT_LABELS + 1
    assert metrics.tenant_label("tenant-9999") == OTHER_TENANTS
    assert metrics.tenant_label("tenant-0") == "tenant-0"


def test_the_weights_of_tenants_with_a_label() -> None:
    weights = {"acme": 3, "other": 1, "unseen": 5}
    metrics = DoorMetrics(weights.__contains__)
    metrics.registry.register(TenantWeightCollector(metrics.labelled_tenants, weights.__getitem__))
    for tenant in ("acme", "other", "made-up"):
        metrics.tenant_label(tenant)
    found = [line for line in lines(metrics) if line.startswith("dunlin_tenant_weight")]
    assert found == ['dunlin_tenant_weight{tenant="acme"} 3.0', 'dunlin_tenant_weight{tenant="other"} 1.0']


def test_long_prompts_and_long_waits_have_buckets() -> None:
    buckets = {name: found for name, (_, found) in HISTOGRAMS.items()}
    assert max(buckets["prompt"]) == max(buckets["generated"]) == 1 << 20
    assert max(buckets["first_token"]) >= 1800
    assert max(buckets["duration"]) >= 7200
    assert all(list(found) == sorted(set(found)) for found in buckets.values())


def test_the_page_of_documentation_lists_every_family(root: Path) -> None:
    text = (root / "docs/metrics.md").read_text().partition("## A dispatcher's page")[2].partition("\n## ")[0]
    expected = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels) or '–'} | {one.text} | "
        f"{f'`{one.vllm}`' if one.vllm else '–'} |"
        for one in documented_metrics()
    ]
    assert [line for line in text.splitlines() if line.startswith("| `dunlin_")] == expected
    metrics = DoorMetrics()
    metrics.registry.register(AccessLogCollector(lambda: (3, 4)))
    metrics.registry.register(TenantWeightCollector(metrics.labelled_tenants, lambda tenant: 1))
    metrics.count_refused_connection("header_timeout")
    page = lines(metrics)
    kinds = {words[2]: words[3] for words in (line.split() for line in page) if words[:2] == ["#", "TYPE"]}
    ours = {name: kind for name, kind in kinds.items() if name.startswith("dunlin_")}
    assert ours == {one.name: one.kind for one in documented_metrics()}
    assert "dunlin_access_log_dropped_total 4.0" in page
    assert not any("_created" in line for line in page)
    assert 'dunlin_connections_refused_total{kind="header_timeout"} 1.0' in page
