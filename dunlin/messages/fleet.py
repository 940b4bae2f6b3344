"""Any service ↔ monitor: reports and reasons go up, versioned FleetViews come down; and the queries of tools.

A report is also a heartbeat: it says how far the sender is, and the monitor judges progress, not wall time.
"""

from dunlin.effects import Address
from dunlin.messages.declare import Method, Parties, Subject, message, number
from dunlin.messages.types import I64, GroupKind, GroupRole, StepTimesSource, Why, i64

PARTIES = Parties("Fleet", dialers=("dispatcher", "global_manager", "instance", "kvstore"), acceptor="monitor")


@message(command=2, hot=True)
class InstanceReport:
    """An instance's report of itself, on every change of note and at least every `reports.interval_s`.

    Slots: `free + owned + reserved + moving + quarantined == capacity`; `cached_slots` of the owned ones hold prefixes
    that no sequence uses and are given away when a sequence needs room. `safepoints` counts safepoints passed by the
    engine, `outstanding_steps` the steps sent and not answered. `draining`: it takes nothing new. `leaving` sequences
    are on their way to another instance, `arriving` ones on their way here; `head_waiting_tokens` is what the first of
    those waiting needs. `parked` of the running ones have a row that left its step and has not come back.
    `layers_held` of the model's `model_layers` are held, in this `layout`. `preempts_batch`: running batch work gives
    its slots to interactive requests that wait; `preemptible_running` sequences with `preemptible_slots` would. Of
    those waiting `batch_waiting` are of the batch class. `risen` sequences of that class are scheduled as interactive
    ones, because they were starved; the counts of batch work before are without them. Counters (`…_total`) only grow.
    `ttft_misses_total` and `tpot_misses_total` are counters of late tokens by `MissCause`. `step_times`: what the times
    of steps are predicted from; `prompt_step_error` and `decode_step_error` are the mean relative errors of the latest
    predictions of steps with prompts and of decode rows alone, `learnt_steps_total` the steps that taught it, also by
    processes before. `guest_slots` of the slots that are not free are set aside for sequences of its elastic group. Of
    a group's leader: `spread_waiting` long requests wait for room at the members, `spread_running` have some; neither
    are among those that wait or run here. `dop_changes_total` rows of those had another number of members than the row
    before.
    """

    ready: bool = number(1, default=False)
    capacity_slots: int = number(2, default=0)
    free_slots: int = number(3, default=0)
    owned_slots: int = number(4, default=0)
    reserved_slots: int = number(5, default=0)
    moving_slots: int = number(6, default=0)
    quarantined_slots: int = number(7, default=0)
    max_positions: int = number(8, default=0)
    running: int = number(9, default=0)
    waiting: int = number(10, default=0)
    waiting_tokens: int = number(11, default=0)
    outstanding_steps: int = number(12, default=0)
    safepoints: int = number(13, default=0)
    engine_pid: int = number(14, default=0)
    epoch: int = number(15, default=0)
    plan_version: int = number(16, default=0)
    group: int = number(17, default=0)
    kind: GroupKind = number(18, default=GroupKind.LOCAL)
    part: GroupRole = number(19, default=GroupRole.LOCAL)
    model: str = number(20, default="")
    weights_digest: str = number(21, default="")
    kv_dtype: str = number(22, default="")
    steps_total: int = number(23, default=0)
    mixed_steps_total: int = number(24, default=0)
    multi_row_steps_total: int = number(25, default=0)
    tokens_total: int = number(26, default=0)
    prefill_tokens_total: int = number(27, default=0)
    preemptions_total: int = number(28, default=0)
    restored_tokens_total: int = number(29, default=0)
    recomputed_tokens_total: int = number(30, default=0)
    restored_regions_total: int = number(31, default=0)
    corrupt_regions_total: int = number(32, default=0)
    engine_restarts_total: int = number(33, default=0)
    stale_total: int = number(34, default=0)
    checkpointed_tokens_total: int = number(35, default=0)
    checkpointed_bytes_total: int = number(36, default=0)
    checkpoint_busy_s_total: float = number(37, default=0.0)
    claimed_tokens_total: int = number(38, default=0)
    draining: bool = number(39, default=False)
    head_waiting_tokens: int = number(40, default=0)
    leaving: int = number(41, default=0)
    arriving: int = number(42, default=0)
    migrations_total: int = number(43, default=0)
    migrations_failed_total: int = number(44, default=0)
    migrated_tokens_total: int = number(45, default=0)
    arrivals_total: int = number(46, default=0)
    revived_tokens_total: int = number(60, default=0)
    poisoned_total: int = number(61, default=0)
    cached_slots: int = number(70, default=0)
    prefix_hit_tokens_total: int = number(71, default=0)
    prefix_query_tokens_total: int = number(72, default=0)
    layout: int = number(73, default=0)
    layers_held: int = number(74, default=0)
    model_layers: int = number(75, default=0)
    parked: int = number(76, default=0)
    preempts_batch: bool = number(77, default=False)
    preemptible_slots: int = number(78, default=0)
    preemptible_running: int = number(79, default=0)
    batch_waiting: int = number(80, default=0)
    batch_waiting_tokens: int = number(81, default=0)
    risen: int = number(82, default=0)
    risen_total: int = number(83, default=0)
    step_times: StepTimesSource = number(84, default=StepTimesSource.NONE)
    prompt_step_error: float = number(85, default=0.0)
    decode_step_error: float = number(86, default=0.0)
    learnt_steps_total: int = number(87, default=0)
    ttft_misses_total: I64 = number(90, default_factory=i64)
    tpot_misses_total: I64 = number(91, default_factory=i64)
    guest_slots: int = number(92, default=0)
    spread_waiting: int = number(93, default=0)
    spread_running: int = number(94, default=0)
    dop_changes_total: int = number(97, default=0)


@message(command=3)
class DispatcherReport:
    """A dispatcher's report of itself."""

    queued: int = number(1, default=0)
    running: int = number(2, default=0)
    finished_total: int = number(3, default=0)
    failed_total: int = number(4, default=0)
    refused_total: int = number(5, default=0)
    cancelled_total: int = number(6, default=0)
    replaced_total: int = number(7, default=0)
    tokens_total: int = number(8, default=0)
    stale_total: int = number(9, default=0)
    adopted_total: int = number(10, default=0)
    joined_total: int = number(11, default=0)
    risen_total: int = number(12, default=0)


@message(command=4)
class KvstoreReport:
    """A kvstore's report of its host tier."""

    capacity_bytes: int = number(1, default=0)
    used_bytes: int = number(2, default=0)
    regions: int = number(3, default=0)
    reserved_total: int = number(4, default=0)
    refused_total: int = number(5, default=0)
    corrupt_total: int = number(6, default=0)
    claimed_total: int = number(7, default=0)


@message(command=5)
class ManagerReport:
    """A global manager's report of itself; `epoch` 0 when it does not lead.

    `long_waiting` requests wait here for an elastic group, `long_placed` have one, of `elastic_groups` that there are.
    """

    epoch: int = number(1, default=0)
    plan_version: int = number(2, default=0)
    long_waiting: int = number(3, default=0)
    long_placed: int = number(4, default=0)
    elastic_groups: int = number(5, default=0)
    long_placed_total: int = number(6, default=0)
    long_refused_total: int = number(7, default=0)


@message()
class Reason:
    """One decision message as it was sent: `payload` is the encoded message of type `kind`."""

    at_s: float = number(1)
    sender: Address = number(2)
    to: Address = number(3)
    kind: str = number(4)
    payload: bytes = number(5)


@message(command=6)
class Reasons:
    """A batch of decision messages; `lost` counts those that the bounded ring dropped before."""

    reasons: tuple[Reason, ...] = number(1)
    lost: int = number(2, default=0)


@message(hot=True)
class MemberView:
    """One member in a FleetView. `suspect`: no sign of progress; the owners of its streams decide what to do."""

    address: Address = number(1)
    node: str = number(2, default="")
    suspect: bool = number(3, default=False)
    ready: bool = number(4, default=False)
    capacity_slots: int = number(5, default=0)
    free_slots: int = number(6, default=0)
    max_positions: int = number(7, default=0)
    running: int = number(8, default=0)
    waiting: int = number(9, default=0)
    waiting_tokens: int = number(10, default=0)
    epoch: int = number(11, default=0)
    plan_version: int = number(12, default=0)
    group: int = number(13, default=0)
    kind: GroupKind = number(14, default=GroupKind.LOCAL)
    part: GroupRole = number(15, default=GroupRole.LOCAL)
    why: Why | None = number(16, default=None)
    draining: bool = number(17, default=False)
    head_waiting_tokens: int = number(18, default=0)
    leaving: int = number(19, default=0)
    preempts_batch: bool = number(20, default=False)
    preemptible_slots: int = number(21, default=0)
    preemptible_running: int = number(22, default=0)
    batch_waiting: int = number(23, default=0)
    batch_waiting_tokens: int = number(24, default=0)
    weights_digest: str = number(25, default="")
    guest_slots: int = number(26, default=0)


@message(event=2, about=Subject.RECEIVER, hot=True)
class FleetView:
    """The fleet at one version.

    `base_version` 0: `members` is everything; else only what changed since that version, and `removed` what left.
    """

    version: int = number(1)
    members: tuple[MemberView, ...] = number(2)
    base_version: int = number(3, default=0)
    removed: tuple[Address, ...] = number(4, default=())


@message()
class ExplainQuery:
    """Which decisions touched this request?

    `request` is the public id, `req-<dispatcher incarnation>-<number>`, both hexadecimal.
    """

    request: str = number(1)


@message()
class Explanation:
    """The recorded messages that concern a request, oldest first; `dunlin explain` renders them."""

    reasons: tuple[Reason, ...] = number(1)


@message()
class StatusQuery:
    """What does the fleet look like now?"""


@message()
class MemberStatus:
    """One process as the monitor sees it; exactly one of the reports is set once it has reported."""

    address: Address = number(1)
    node: str = number(2, default="")
    endpoint: str = number(3, default="")
    pid: int = number(4, default=0)
    connected: bool = number(5, default=False)
    suspect: bool = number(6, default=False)
    silent_s: float = number(7, default=0.0)
    instance: InstanceReport | None = number(8, default=None)
    dispatcher: DispatcherReport | None = number(9, default=None)
    kvstore: KvstoreReport | None = number(10, default=None)
    manager: ManagerReport | None = number(11, default=None)


@message()
class FleetStatus:
    """Everything `dunlin status` prints."""

    version: int = number(1)
    members: tuple[MemberStatus, ...] = number(2)
    suspicions_total: int = number(3, default=0)
    reasons_held: int = number(4, default=0)
    reasons_lost: int = number(5, default=0)


FLEET_REPORTS = (InstanceReport, DispatcherReport, KvstoreReport, ManagerReport, Reasons)


MONITOR_SERVICE = "dunlin.v1.Monitor"
"""What tools ask the monitor."""
EXPLAIN = Method(MONITOR_SERVICE, "Explain", ExplainQuery, Explanation)
STATUS = Method(MONITOR_SERVICE, "Status", StatusQuery, FleetStatus)
