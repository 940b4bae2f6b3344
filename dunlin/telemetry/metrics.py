"""Metrics out of reports: the families `dunlin_*`, made from one `FleetStatus` for each scrape. Pure.

`FIELDS` lists each number of a report with its metric's name and meaning; a family has one sample per process, labelled
`name` and `node`. Names end in `_total` where the number only grows while its process lives, and carry their unit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.messages.lifecycle import MissCause


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One number of a family, with its labels in order."""

    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. `kind` is `gauge` or `counter`; a counter's name ends in `_total`."""

    name: str
    help: str
    kind: str
    samples: tuple[MetricSample, ...]


FIELDS: dict[str, dict[str, str]] = {
    "instance": {
        "ready": "1 when the engine can take steps",
        "capacity_slots": "token slots of the slab",
        "free_slots": "token slots that are free",
        "owned_slots": "token slots that hold a sequence's KV",
        "reserved_slots": "token slots set aside",
        "moving_slots": "token slots whose content is being copied",
        "quarantined_slots": "token slots that a silent process may still write",
        "running": "sequences in the running batch",
        "parked": "running sequences whose row left its step and has not been resumed",
        "preempts_batch": "1: running batch work gives its slots to interactive requests that wait",
        "preemptible_slots": "token slots that batch work would give to interactive requests",
        "preemptible_running": "running sequences of the batch class that would give up their slots",
        "batch_waiting": "waiting sequences of the batch class",
        "batch_waiting_tokens": "tokens of waiting sequences of the batch class",
        "risen": "sequences of the batch class that are scheduled as interactive, because they were starved",
        "risen_total": "starved sequences of the batch class that rose",
        "ttft_misses_total": "interactive requests whose first token came later than its objective, by cause",
        "tpot_misses_total": "further tokens of interactive requests that came later than their objective, by cause",
        "step_times": "what steps are predicted from: 0 not at all, 1 nothing yet, 2 earlier steps, 3 a profile",
        "prompt_step_error": "mean relative error of the latest predictions of steps with prompts",
        "decode_step_error": "mean relative error of the latest predictions of steps of decode rows alone",
        "learnt_steps_total": "steps that predictions were learnt from, also by processes before",
        "waiting": "sequences that wait for slots or their turn",
        "waiting_tokens": "tokens of the waiting sequences",
        "outstanding_steps": "steps sent to the engine and not answered",
        "safepoints": "safepoints that the engine has passed",
        "epoch": "epoch of the order that the instance obeys",
        "plan_version": "plan version of that order, 0 for none",
        "steps_total": "steps answered",
        "mixed_steps_total": "steps with prefill and decode rows",
        "multi_row_steps_total": "steps with two rows or more",
        "tokens_total": "tokens generated",
        "prefill_tokens_total": "prompt tokens computed",
        "preemptions_total": "sequences that lost their slots to older work",
        "restored_tokens_total": "tokens whose KV came back from the host tier",
        "recomputed_tokens_total": "tokens whose KV was computed again",
        "restored_regions_total": "regions read back from the host tier",
        "corrupt_regions_total": "regions whose copy did not match the checksum",
        "engine_restarts_total": "engine processes started after the first",
        "stale_total": "messages dropped because they belong to an older attempt, incarnation or order",
        "revived_tokens_total": "tokens whose KV was still in the KV cache after the engine's restart",
        "poisoned_total": "requests stopped because they crash engines",
        "checkpointed_tokens_total": "tokens whose KV was copied to the host tier while their sequence ran",
        "checkpointed_bytes_total": "bytes of those copies",
        "checkpoint_busy_s_total": "seconds that the engine spent on those copies",
        "claimed_tokens_total": "tokens whose KV was taken over from an instance that is gone",
        "draining": "1 while it takes nothing new",
        "head_waiting_tokens": "tokens that the first waiting sequence needs",
        "leaving": "sequences on their way to another instance",
        "arriving": "sequences on their way here",
        "migrations_total": "sequences that left for another instance",
        "migrations_failed_total": "sequences that were to leave and stayed",
        "migrated_tokens_total": "tokens whose KV went along with them",
        "arrivals_total": "sequences that came from another instance",
        "cached_slots": "owned token slots of cached prefixes that no sequence uses; evicted at need",
        "prefix_hit_tokens_total": "prompt tokens found in the prefix cache",
        "prefix_query_tokens_total": "prompt tokens looked up there",
        "layout": "version of the layers held",
        "layers_held": "layers whose weights the engine holds",
        "model_layers": "layers of the model",
        "group": "number of its group, 0 for none",
        "kind": "kind of its group: 0 alone, 4 elastic",
        "part": "what it does there: 0 all, 5 prompts, 6 all but prompts, 7 leads the group, 8 is a member",
        "guest_slots": "token slots set aside for sequences of its elastic group",
        "spread_waiting": "long requests that wait for room in the group that it leads",
        "spread_running": "long requests that have slots there",
        "ring_tokens_total": "tokens of prompts that went round the members of groups that it led",
        "ring_releases_total": "times that a member was free once such a prompt was computed: it is kept at others",
        "dop_changes_total": "times that another number of members computed a long request than before",
    },
    "dispatcher": {
        "queued": "requests that wait for an instance",
        "running": "requests dispatched",
        "finished_total": "requests that ended as they should",
        "failed_total": "requests that ended with an error",
        "refused_total": "requests not taken",
        "cancelled_total": "requests that their clients gave up",
        "replaced_total": "requests dispatched again after an instance was lost",
        "tokens_total": "tokens delivered",
        "stale_total": "messages dropped because they belong to an older attempt or incarnation",
        "adopted_total": "requests of another dispatcher that were found running, or just ended, at an instance",
        "joined_total": "requests that were answered by one that ran, or had ended, under the same idempotency key",
        "risen_total": "requests of the batch class that rose in the queue, because they waited too long",
    },
    "kvstore": {
        "capacity_bytes": "host tier",
        "used_bytes": "host tier in use, padding and quarantine included",
        "regions": "regions in the catalog",
        "reserved_total": "regions reserved",
        "refused_total": "regions refused for want of room",
        "corrupt_total": "regions that a reader found corrupt",
        "claimed_total": "regions that passed to a new owner",
    },
    "manager": {
        "epoch": "term that this manager leads, 0 when it does not lead",
        "plan_version": "newest plan of that term",
        "long_waiting": "long requests that wait here for an elastic group",
        "long_placed": "long requests that have a group",
        "elastic_groups": "elastic groups that there are",
        "long_placed_total": "long requests that got a group",
        "long_refused_total": "long requests that got none",
    },
}


CAUSES: dict[str, tuple[str, type[IntEnum]]] = {
    "ttft_misses_total": ("cause", MissCause),
    "tpot_misses_total": ("cause", MissCause),
}
"""The label of each field that is a column, and what its entries count."""

FLEET = {
    "dunlin_fleet_view_version": "newest FleetView",
    "dunlin_suspicions_total": "suspicions raised",
    "dunlin_reasons_held": "decisions that the monitor holds",
    "dunlin_reasons_lost_total": "decisions that it no longer holds, or never got",
}
MEMBER = {
    "dunlin_member_connected": "1 when the process has a stream to the monitor",
    "dunlin_member_suspect": "1 when the process shows no progress",
    "dunlin_member_silent_seconds": "time since its last report, or without any since it was first seen",
}


TRACES = {
    "dunlin_spans_exported_total": "spans that the OpenTelemetry collector took (only with --otlp)",
    "dunlin_spans_dropped_total": "spans that it did not take, or that the queue had no room for (only with --otlp)",
}


def exporter_metrics(exported: int, dropped: int) -> list[MetricFamily]:
    """The families of the span exporter."""
    values = zip(TRACES.items(), (exported, dropped), strict=True)
    return [MetricFamily(name, text, _kind(name), (MetricSample((), float(value)),)) for (name, text), value in values]


def documented_metrics() -> list[tuple[str, str, str]]:
    """Name, kind and meaning of every family there can be; `docs/metrics.md` holds this table."""
    names = FLEET | TRACES | MEMBER
    for role, fields in FIELDS.items():
        names |= {_name(role, field): text for field, text in fields.items()}
    return [(name, _kind(name), text) for name, text in names.items()]


def metric_families(status: FleetStatus) -> list[MetricFamily]:
    """Every family, in a fixed order; one without a sample is left out."""
    found = [*_monitor(status), *_members(status.members)]
    for role, fields in FIELDS.items():
        found += [_reported(role, field, text, status.members) for field, text in fields.items()]
    return [family for family in found if family.samples]


def _monitor(status: FleetStatus) -> list[MetricFamily]:
    values = (status.version, status.suspicions_total, status.reasons_held, status.reasons_lost)
    return [
        MetricFamily(name, text, _kind(name), (MetricSample((), float(value)),))
        for (name, text), value in zip(FLEET.items(), values, strict=True)
    ]


def _members(members: Iterable[MemberStatus]) -> list[MetricFamily]:
    labelled = [((("role", one.address.role), *_labels(one)), one) for one in members]
    return [
        MetricFamily(
            name, text, _kind(name), tuple(MetricSample(labels, float(getattr(one, field))) for labels, one in labelled)
        )
        for (name, text), field in zip(MEMBER.items(), ("connected", "suspect", "silent_s"), strict=True)
    ]


def _reported(role: str, field: str, text: str, members: Iterable[MemberStatus]) -> MetricFamily:
    reports = [(one, getattr(one, role)) for one in members]
    samples = tuple(
        sample
        for one, report in reports
        if report is not None
        for sample in _samples(one, field, getattr(report, field))
    )
    return MetricFamily(_name(role, field), text, _kind(field), samples)


def _samples(member: MemberStatus, field: str, value: Any) -> list[MetricSample]:
    """One sample, or of a column one for each cause."""
    if field not in CAUSES:
        return [MetricSample(_labels(member), float(value))]
    label, kinds = CAUSES[field]
    counts = [*value, *[0] * len(kinds)]  # a report of another version may know fewer
    named = zip(kinds, counts, strict=False)
    return [MetricSample((*_labels(member), (label, kind.name.lower())), float(count)) for kind, count in named]


def _name(role: str, field: str) -> str:
    """The metric of a report's field: Prometheus writes units out."""
    return f"dunlin_{role}_{field.replace('_s_total', '_seconds_total')}"


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _labels(member: MemberStatus) -> tuple[tuple[str, str], ...]:
    return (("name", member.address.name), ("node", member.node))
