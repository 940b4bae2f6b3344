"""What a monitor's core is told at start, one section per decision. Pure."""

from dataclasses import dataclass

from dunlin.config.fields import check, section, setting


@dataclass(frozen=True, slots=True)
class LivenessConfig:
    """When an instance is suspect."""

    stuck_s: float = setting(
        3.0,
        "Work is outstanding and no progress was reported for so long: suspect. A slow machine needs more.",
        unit="seconds",
        above=0,
        why="safepoints are milliseconds apart, also within a long step",
    )
    silent_s: float = setting(
        3.0, "No report for so long: suspect.", unit="seconds", above=0, why="six intervals of the reports"
    )
    least_silent_s: float = setting(
        1.25,
        "An instance that has reported for half a minute, or for 5 s after an incarnation that had, is suspect after "
        "2.5 times the longest gap between two of its reports lately, within this and silent_s.",
        unit="seconds",
        above=0,
        why="2.5 intervals of the reports; where processes wait for a core gaps are longer, and so is the limit",
    )
    tick_s: float = setting(
        0.25, "Time between two looks.", unit="seconds", above=0, why="small beside stuck_s and silent_s"
    )
    slept_s: float = setting(
        0.5,
        "A look that comes so much late means that the monitor itself slept: nothing is judged by the missed time.",
        unit="seconds",
        above=0,
        why="two looks; with an interval of reports on top less than least_silent_s",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class FleetViewsConfig:
    """When versions of the FleetView are published."""

    publish_interval_s: float = setting(
        0.1,
        "Changes of load are published at most once in this time, all others at once.",
        unit="seconds",
        above=0,
        why="dispatchers count what they placed meanwhile (dispatcher.placement.view_lag_s)",
    )
    small_fleet: int = setting(
        100,
        "Beyond so many instances urgent changes are published less often too.",
        unit="instances",
        least=1,
        why="a version of as many takes well below a millisecond",
    )
    urgent_per_instance_s: float = setting(
        5e-6,
        "Time between two urgent versions for each instance beyond small_fleet: when thousands become ready together, "
        "that is a few versions, not thousands.",
        unit="seconds",
        above=0,
        why="about what a version takes per instance",
    )
    warm_up_s: float = setting(
        2.0,
        "A new monitor, or one that slept, publishes nothing until every registered instance has reported, at most for "
        "so long: the last view of its predecessor is worth more than an empty one.",
        unit="seconds",
        above=0,
        why="four intervals of the reports",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ReasonsConfig:
    """The recorded decisions, for `dunlin explain`."""

    ring_records: int = setting(
        20_000, "Records that are kept; the oldest go first.", unit="records", least=1, why="minutes of a busy cluster"
    )
    ring_bytes: int = setting(64 << 20, "Bytes they take at most.", unit="bytes", least=1, why="a bound for memory")
    max_explained: int = setting(
        1_000,
        "Records of one explanation at most.",
        unit="records",
        least=1,
        why="a longer story is not read, and must fit into a message",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """Settings of one monitor's core. `traces`: pass the records on to the address `TRACES`; its host's to say."""

    traces: bool = False
    liveness: LivenessConfig = section(LivenessConfig)
    views: FleetViewsConfig = section(FleetViewsConfig)
    reasons: ReasonsConfig = section(ReasonsConfig)
