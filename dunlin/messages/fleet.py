"""Any service ↔ monitor: reports and reasons go up, versioned FleetViews come down; and the queries of tools.

A report is also a heartbeat: it says how far the sender is, and the monitor judges progress, not wall time.
"""

from dataclasses import dataclass

from dunlin.effects import Address, record
from dunlin.messages.types import GroupKind, Part, Why


@record
class InstanceReport:
    """What an instance says of itself, on every change of note and at least every `report_interval_s`.

    Slots: `free + owned + reserved + moving + quarantined == capacity`; `cached_slots` of the owned ones hold prefixes
    that nobody uses and are given away when somebody needs room. `safepoints` counts safepoints passed by the
    engine, `outstanding_steps` the steps sent and not answered. `draining`: it takes nothing new. `leaving` sequences
    are on their way to another instance, `arriving` ones on their way here; `head_waiting_tokens` is what the first of
    those waiting needs. Counters (`…_total`) only grow.
    """

    ready: bool = False
    capacity_slots: int = 0
    free_slots: int = 0
    owned_slots: int = 0
    reserved_slots: int = 0
    moving_slots: int = 0
    quarantined_slots: int = 0
    max_positions: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    outstanding_steps: int = 0
    safepoints: int = 0
    engine_pid: int = 0
    epoch: int = 0
    plan_version: int = 0
    group: int = 0
    kind: GroupKind = GroupKind.LOCAL
    part: Part = Part.LOCAL
    model: str = ""
    weights_digest: str = ""
    kv_dtype: str = ""
    steps_total: int = 0
    mixed_steps_total: int = 0
    multi_row_steps_total: int = 0
    tokens_total: int = 0
    prefill_tokens_total: int = 0
    preemptions_total: int = 0
    restored_tokens_total: int = 0
    recomputed_tokens_total: int = 0
    restored_regions_total: int = 0
    corrupt_regions_total: int = 0
    engine_restarts_total: int = 0
    stale_total: int = 0
    checkpointed_tokens_total: int = 0
    checkpointed_bytes_total: int = 0
    checkpoint_busy_s_total: float = 0.0
    claimed_tokens_total: int = 0
    draining: bool = False
    head_waiting_tokens: int = 0
    leaving: int = 0
    arriving: int = 0
    migrations_total: int = 0
    migrations_failed_total: int = 0
    migrated_tokens_total: int = 0
    arrivals_total: int = 0
    revived_tokens_total: int = 0
    poisoned_total: int = 0
    cached_slots: int = 0
    prefix_hit_tokens_total: int = 0
    prefix_query_tokens_total: int = 0


@dataclass(frozen=True, slots=True)
class DispatcherReport:
    """What a dispatcher says of itself."""

    queued: int = 0
    running: int = 0
    finished_total: int = 0
    failed_total: int = 0
    refused_total: int = 0
    cancelled_total: int = 0
    replaced_total: int = 0
    tokens_total: int = 0
    stale_total: int = 0
    adopted_total: int = 0
    joined_total: int = 0


@dataclass(frozen=True, slots=True)
class KvstoreReport:
    """What a kvstore says of its host tier."""

    capacity_bytes: int = 0
    used_bytes: int = 0
    regions: int = 0
    reserved_total: int = 0
    refused_total: int = 0
    corrupt_total: int = 0
    claimed_total: int = 0


@dataclass(frozen=True, slots=True)
class ManagerReport:
    """What a global manager says of itself; `epoch` 0 when it does not lead."""

    epoch: int = 0
    plan_version: int = 0


@dataclass(frozen=True, slots=True)
class Reason:
    """One decision message as it was sent: `payload` is the encoded message of type `kind`."""

    at_s: float
    sender: Address
    to: Address
    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Reasons:
    """A batch of decision messages; `lost` counts those that the bounded ring dropped before."""

    reasons: tuple[Reason, ...]
    lost: int = 0


@record
class MemberView:
    """One member in a FleetView. `suspect`: no sign of progress; the owners of its streams decide what to do."""

    address: Address
    node: str = ""
    suspect: bool = False
    ready: bool = False
    capacity_slots: int = 0
    free_slots: int = 0
    max_positions: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    epoch: int = 0
    plan_version: int = 0
    group: int = 0
    kind: GroupKind = GroupKind.LOCAL
    part: Part = Part.LOCAL
    why: Why | None = None
    draining: bool = False
    head_waiting_tokens: int = 0
    leaving: int = 0


@record
class FleetView:
    """The fleet at one version.

    `base_version` 0: `members` is everything; else only what changed since that version, and `removed` what left.
    """

    version: int
    members: tuple[MemberView, ...]
    base_version: int = 0
    removed: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """Which decisions touched this request?

    `request` is the public id, `req-<dispatcher incarnation>-<number>`, both hexadecimal.
    """

    request: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The recorded messages that concern a request, oldest first; `dunlin explain` renders them."""

    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """What does the fleet look like now?"""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One process as the monitor sees it; exactly one of the reports is set once it has reported."""

    address: Address
    node: str = ""
    endpoint: str = ""
    pid: int = 0
    connected: bool = False
    suspect: bool = False
    silent_s: float = 0.0
    instance: InstanceReport | None = None
    dispatcher: DispatcherReport | None = None
    kvstore: KvstoreReport | None = None
    manager: ManagerReport | None = None


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Everything `dunlin status` prints."""

    version: int
    members: tuple[MemberStatus, ...]
    suspicions_total: int = 0
    reasons_held: int = 0
    reasons_lost: int = 0


FLEET_REPORTS = (InstanceReport, DispatcherReport, KvstoreReport, ManagerReport, Reasons)
FLEET_EVENTS = (FleetView,)

__all__ = [
    "FLEET_EVENTS",
    "FLEET_REPORTS",
    "DispatcherReport",
    "ExplainQuery",
    "Explanation",
    "FleetStatus",
    "FleetView",
    "InstanceReport",
    "KvstoreReport",
    "ManagerReport",
    "MemberStatus",
    "MemberView",
    "Reason",
    "Reasons",
    "StatusQuery",
]
