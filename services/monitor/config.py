"""What a monitor is told at start. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """Settings of the watch, of the FleetView and of the recorded reasons.

    An instance is suspect after `stuck_s` with work outstanding and no progress, or `silent_s` without a report. A tick
    that comes more than `slept_s` late means that the monitor itself slept. Changes of load are published at most every
    `publish_interval_s`, all others at once; beyond `small_fleet` instances at most every `urgent_member_s` for each
    one more: when thousands become ready together, that is a few versions, not thousands. A new monitor says nothing
    until every registered instance has reported, at most `warm_up_s`: the last view of its predecessor is worth more
    than an empty one. One that slept waits likewise for those that were suspect before: they may be well since. An
    explanation has at most `explain_records` records. `traces`: pass the records on to the address `TRACES`.
    """

    stuck_s: float = 3.0
    silent_s: float = 3.0
    tick_s: float = 0.25
    slept_s: float = 1.0
    publish_interval_s: float = 0.1
    urgent_member_s: float = 5e-6
    small_fleet: int = 100
    warm_up_s: float = 2.0
    ring_records: int = 20_000
    ring_bytes: int = 64 << 20
    explain_records: int = 1_000
    traces: bool = False

    def __post_init__(self) -> None:
        views = ("publish_interval_s", "urgent_member_s", "warm_up_s")
        for name in ("stuck_s", "silent_s", "tick_s", "slept_s", *views):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be positive")
        for name in ("ring_records", "ring_bytes", "explain_records", "small_fleet"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
