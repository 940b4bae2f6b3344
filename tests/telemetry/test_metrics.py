"""Metrics: every number of every report has a family, and the page parses."""

from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dunlin.effects import Address
from dunlin.messages.fleet import (
    DispatcherReport,
    FleetStatus,
    InstanceReport,
    KvstoreReport,
    ManagerReport,
    MemberStatus,
)
from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import i64
from dunlin.telemetry.metrics import FIELDS, MetricFamily, documented_metrics, metric_families
from dunlin.telemetry.prometheus import render_metrics

REPORTS = {
    "instance": InstanceReport,
    "dispatcher": DispatcherReport,
    "kvstore": KvstoreReport,
    "manager": ManagerReport,
}
NOT_METRICS = {"max_positions", "engine_pid", "model", "weights_digest", "kv_dtype"}

MISSES = i64([cause == MissCause.SLOTS for cause in MissCause])


def status() -> FleetStatus:
    i0 = MemberStatus(
        Address("instance", "i0", 3),
        node="n",
        connected=True,
        suspect=True,
        silent_s=1.5,
        instance=InstanceReport(ready=True, free_slots=7, tokens_total=9, ttft_misses_total=MISSES),
    )
    i1 = MemberStatus(Address("instance", 'i"1\n', 4), instance=InstanceReport(free_slots=8))
    kv = MemberStatus(Address("kvstore", "kv", 5), connected=True, kvstore=KvstoreReport(used_bytes=1 << 40))
    return FleetStatus(12, (i0, i1, kv), suspicions_total=2, reasons_held=3, reasons_lost=1)


def found() -> dict[str, MetricFamily]:
    return {family.name: family for family in metric_families(status())}


@pytest.mark.parametrize("role", REPORTS)
def test_every_number_of_a_report_is_documented(role: str) -> None:
    assert set(FIELDS[role]) == {field.name for field in fields(REPORTS[role])} - NOT_METRICS


def test_the_page_of_documentation_lists_every_family(root: Path) -> None:
    lines = (root / "docs/metrics.md").read_text().partition("## The monitor's page")[2].splitlines()
    assert [f"| `{name}` | {kind} | {text} |" for name, kind, text in documented_metrics()] == [
        line for line in lines if line.startswith("| `dunlin_")
    ]
    assert {family.name for family in metric_families(status())} <= {name for name, _, _ in documented_metrics()}


def test_names_and_kinds() -> None:
    for family in metric_families(status()):
        assert family.name.startswith("dunlin_")
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert family.help


def test_a_family_has_a_sample_per_process_that_reported() -> None:
    assert [(sample.labels[0][1], sample.value) for sample in found()["dunlin_instance_free_slots"].samples] == [
        ("i0", 7.0),
        ('i"1\n', 8.0),
    ]
    assert "dunlin_dispatcher_queued" not in found()


def test_the_fleet_itself() -> None:
    assert found()["dunlin_fleet_view_version"].samples[0].value == 12
    suspect = {sample.labels[1][1]: sample.value for sample in found()["dunlin_member_suspect"].samples}
    assert suspect == {"i0": 1.0, 'i"1\n': 0.0, "kv": 0.0}


def test_misses_are_labelled_by_their_cause() -> None:
    family = found()["dunlin_instance_ttft_misses_total"]
    labels = [{**dict(sample.labels), "value": sample.value} for sample in family.samples]
    assert {each["cause"]: each["value"] for each in labels if each["name"] == "i0"} == {
        cause.name.lower(): float(cause is MissCause.SLOTS) for cause in MissCause
    }
    assert [each["value"] for each in labels if each["name"] != "i0"] == [0.0] * len(MissCause), "it counted none"


def test_the_page_says_the_same_to_a_parser() -> None:
    page = render_metrics(metric_families(status())).decode()
    read = {
        (sample.name, sample.labels.get("name", ""), sample.labels.get("cause", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not family.name.startswith("process_")
    }
    expected = {
        (family.name, dict(sample.labels).get("name", ""), dict(sample.labels).get("cause", "")): sample.value
        for family in metric_families(status())
        for sample in family.samples
    }
    assert read == expected
    assert read["dunlin_kvstore_used_bytes", "kv", ""] == float(1 << 40)
