"""Families as a Prometheus page, read back by Prometheus' own parser."""

from dunlin.messages.fleet import (
    FleetStatus,
)
from dunlin.telemetry.metrics import MetricFamily, MetricSample, metric_families
from dunlin.telemetry.prometheus import render_metrics


def test_a_fleet_without_members_has_a_page_too() -> None:
    assert b"dunlin_fleet_view_version 1.0" in render_metrics(metric_families(FleetStatus(1, ())))


def family(kind: str, name: str, *samples: tuple[float, tuple[tuple[str, str], ...]]) -> MetricFamily:
    return MetricFamily(name, "What it counts.", kind, tuple(MetricSample(labels, value) for value, labels in samples))


def lines(*families: MetricFamily) -> list[str]:
    page = render_metrics(families).decode()
    return [line for line in page.splitlines() if "dunlin_" in line]


def test_a_gauge_and_a_counter_are_written_with_help_type_and_samples() -> None:
    gauge = family(
        "gauge", "dunlin_free_slots", (7, (("name", "i0"), ("node", "a"))), (0.5, (("name", "i1"), ("node", "b")))
    )
    assert lines(gauge) == [
        "# HELP dunlin_free_slots What it counts.",
        "# TYPE dunlin_free_slots gauge",
        'dunlin_free_slots{name="i0",node="a"} 7.0',
        'dunlin_free_slots{name="i1",node="b"} 0.5',
    ]
    assert lines(family("counter", "dunlin_steps_total", (3, ()))) == [
        "# HELP dunlin_steps_total What it counts.",
        "# TYPE dunlin_steps_total counter",
        "dunlin_steps_total 3.0",
    ]


def test_a_name_of_any_letters_cannot_break_its_line() -> None:
    *_, sample = lines(family("gauge", "dunlin_x", (1, (("name", 'a"b\\c\nd'),))))
    assert sample == 'dunlin_x{name="a\\"b\\\\c\\nd"} 1.0'


def test_families_may_come_from_a_generator_and_this_process_is_on_the_page() -> None:
    page = render_metrics(each for each in [family("gauge", "dunlin_x", (1, ()))])
    assert b"dunlin_x 1.0" in page
    assert b"process_resident_memory_bytes" in page
