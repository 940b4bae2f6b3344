"""What an instance's core is told at start, one section per decision. Pure."""

from dataclasses import dataclass

from dunlin.config.fields import check, section, setting
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.handoff import HANDOFF_POLICIES
from dunlin.policies.interrupt import INTERRUPT_POLICIES
from dunlin.policies.preemption import PREEMPTION_MODES
from dunlin.policies.victim import VICTIM_POLICIES
from services.instance.group.config import InstanceGroupsConfig

PEER, DISK = "peer", "disk"
"""Where weights are read first (RemapConfig.load_from)."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Which sequences run, and what one step holds."""

    policy: str = setting(
        "chunked",
        "How a step is filled: `chunked` takes all decode rows, then chunks of prompts; `prefill_first` whole prompts "
        "while any waits; `slo_aware` interactive rows, then batch rows as far as the predicted time of the step keeps "
        "the objectives; `harvest` likewise, with short prompts first and next to no batch work beside interactive "
        "ones.",
        choices=tuple(BATCH_POLICIES),
        why="Sarathi-Serve: no prompt, however long, holds up the tokens of others",
    )
    budget_tokens: int = setting(
        512,
        "Tokens that one step is filled up to (vLLM: max_num_batched_tokens). `chunked`: all decode rows, even if they "
        "are more, then chunks of prompts in what is left, at least one token. `prefill_first`: whole prompts, the "
        "first however long. More is faster for long prompts, less makes streams smoother.",
        unit="tokens",
        least=1,
        why="a compromise: traces like 256 to 1024 best (docs/measurements/2026-11-21-presets.md)",
    )
    max_step_tokens: int = setting(
        2048,
        "Tokens that a step of `slo_aware` or `harvest` holds at most: where only batch work runs, it is filled up to "
        "so many.",
        unit="tokens",
        least=1,
        why="beyond it a device is saturated, and a step only gets longer",
    )
    max_running: int = setting(
        128,
        "Sequences that hold slots at once (vLLM: max_num_seqs).",
        unit="sequences",
        least=1,
        why="steps gain little from more rows, and each row more slows all others down",
    )
    max_waiting: int = setting(
        256,
        "Sequences that may wait here for slots; the next one is refused and stays with its dispatcher.",
        unit="sequences",
        least=1,
        why="a bound for memory only: dispatchers let fewer wait (dispatcher.placement.max_waiting_per_instance)",
    )
    allocate_ahead_tokens: int = setting(
        32,
        "A running sequence is given slots for so many more tokens at a time, so that its extents stay long.",
        unit="tokens",
        least=1,
        why="long extents make transfers of KV cheap, and 32 slots per running sequence are little",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ObjectivesConfig:
    """What interactive requests are to get that say nothing of their own (`dispatcher.objectives`); the policies
    `slo_aware`, `harvest`, `on_arrival`, `recall` and those with `_rows` aim at it, and what comes later is counted."""

    ttft_s: float = setting(
        1.5,
        "Time to the first token, since the request came to the instance.",
        unit="seconds",
        above=0,
        why="ConServe's evaluation; a reader notices more",
    )
    tpot_s: float = setting(
        0.11,
        "Time of each token after the first.",
        unit="seconds",
        above=0,
        why="ConServe's evaluation; faster than people read",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """Which sequence loses its slots when there are too few, and what becomes of its KV."""

    victim_policy: str = setting(
        "youngest",
        "Which running sequence is preempted. `youngest`: whose turn is last, and none for one that waits; "
        "`batch_first`: batch work, also for an interactive request that waits for slots, and first what the host tier "
        "has a copy of.",
        choices=tuple(VICTIM_POLICIES),
        why="the oldest is preempted last: it gets to its end, whatever arrives behind it",
    )
    mode: str = setting(
        "spill",
        "What becomes of the victim's KV: `spill` copies it to the host tier, `recompute` drops it, `swap` copies it, "
        "there and back, while no step starts (a baseline).",
        choices=tuple(PREEMPTION_MODES),
        why="copying back is faster than computing again; without room in the host tier it is computed again anyway",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class InterruptsConfig:
    """Which rows leave a running step before its end, and come back."""

    policy: str = setting(
        "never",
        "Which rows leave a running step at a safepoint: `never` any; `on_arrival`: all of a step of batch work, where "
        "an interactive request would miss its objective; `on_arrival_rows`: batch rows of any step, earlier; "
        "`recall`, `recall_rows`: the same, and queued steps with batch rows are composed again for such a request; "
        "`restless`: some at random, to find what breaks.",
        choices=tuple(INTERRUPT_POLICIES),
        why="steps are short beside what a reader notices, unless prompts are very long",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class InstanceStarvationConfig:
    """Batch sequences that others keep from slots, or from rows in steps, for too long."""

    batch_wait_s: float = setting(
        600.0,
        "A batch sequence that has got no further for so long rises: until it ends it is no victim of interactive "
        "ones, waits in line with them, and has a part in every step. 0: none does.",
        unit="seconds",
        least=0,
        why="longer than a burst of chat, and little of a completion window of a day",
    )
    risen_share: float = setting(
        0.05,
        "Share of scheduler.max_running that sequences which rose may be at a time, and of the token slots that they "
        "may need in the end; one may always rise.",
        unit="share of sequences and of slots",
        least=0,
        most=1,
        why="what chat hardly notices",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    """The token slots on the device."""

    max_slots: int = setting(
        0,
        "Token slots that are used at most; 0: all that the engine offers. A live engine allocates memory for as many "
        "(instance.engine.kv_bytes and gpu_memory_utilization count only where this is 0).",
        unit="slots",
        least=0,
        why="memory is the usual measure",
    )
    prefix_caching: bool = setting(
        True,
        "Whether sequences of one tenant that begin with the same tokens share their slots (vLLM: "
        "enable_prefix_caching).",
        why="it costs nothing where no two prompts begin alike",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Copies of running sequences' KV in the host tier, from which another instance goes on after a failure."""

    engine_share: float = setting(
        0.025,
        "Share of wall time, idle time included, that the engine may spend on copies of what runs; what is not used is "
        "saved up for a second. 0: none are made.",
        unit="share of wall time",
        least=0,
        most=0.5,
        why="a throughput that is lower by less than 1 % (docs/measurements/2026-11-21-keeping.md)",
    )
    pressure_share: float = setting(
        0.05,
        "Share of wall time for further copies, of what would be preempted first, when no slot is free; it grows from "
        "0 at half of the slots. Where engine_share is 0 none are made.",
        unit="share of wall time",
        least=0,
        most=0.5,
        why="as ConServe (4.4); what is copied already gives up its slots at once",
    )
    min_tokens: int = setting(
        64,
        "Tokens of one copy at least.",
        unit="tokens",
        least=1,
        why="smaller copies cost more in calls than in bytes",
    )
    max_tokens: int = setting(
        1024,
        "Tokens of one copy at most (min_tokens, if that is more).",
        unit="tokens",
        least=1,
        why="a copy delays the step beside it, and no stream should stand still for it",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class HostTierConfig:
    """Dealing with the kvstore of this node."""

    answer_timeout_s: float = setting(
        3.0,
        "A kvstore that has not answered for so long is not waited for.",
        unit="seconds",
        above=0,
        why="as long as the monitor waits before it suspects a process",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    """Live migration of running sequences between instances."""

    max_outgoing: int = setting(
        4,
        "Sequences that leave this instance at once.",
        unit="sequences",
        least=1,
        why="more would share the same bandwidth and take longer each",
    )
    max_incoming: int = setting(
        16,
        "Sequences that arrive here at once.",
        unit="sequences",
        least=1,
        why="several sources may send here, each max_outgoing",
    )
    tail_tokens: int = setting(
        32,
        "A leaving sequence stops to decode when at most so many of its tokens are missing at its target.",
        unit="tokens",
        least=1,
        why="the pause of its stream is the time to copy as many",
    )
    stage_timeout_s: float = setting(
        5.0,
        "One stage of a migration (reserve, copy, fill) lasts so long at most; then the sequence stays.",
        unit="seconds",
        above=0,
        why="longer than a copy of gigabytes takes, shorter than a reader's patience",
    )
    reservation_s: float = setting(
        15.0,
        "Slots that are reserved for an arriving sequence are kept for so long without news of it.",
        unit="seconds",
        above=0,
        why="three stages of stage_timeout_s: the source has given up by then",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class KvHandoffConfig:
    """Handing a prompt's KV from a prefill instance to a decode instance (prefill-decode disaggregation)."""

    policy: str = setting(
        "none",
        "Whether a sequence is handed off after its first token: `none`, or to the decode instance with `most_room`.",
        choices=tuple(HANDOFF_POLICIES),
        why="instances do both unless the preset splits them",
    )
    max_concurrent: int = setting(
        16,
        "Sequences that a prefill instance hands off at once.",
        unit="sequences",
        least=1,
        why="as many as a decode instance takes at once (instance.migration.max_incoming)",
    )
    max_hold_s: float = setting(
        10.0,
        "A finished prompt waits so long at most for a decode instance; then it decodes where it is.",
        unit="seconds",
        above=0,
        why="a stream should go on, if slower, before its reader gives up",
    )
    refusal_pause_s: float = setting(
        0.05,
        "A decode instance that had no room is not asked again for so long.",
        unit="seconds",
        above=0,
        why="about one step: room appears when a step ends",
    )
    layer_by_layer: bool = setting(
        True,
        "Copy the KV of a prompt into the decode instance's slots layer by layer while it is computed, where the "
        "engines reach each other's memory; `false`: copy it when the prompt is done.",
        why="as DistServe does: the copy is nearly over when the first token comes",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class EngineWatchConfig:
    """When an engine process counts as stuck, and is replaced."""

    stuck_s: float = setting(
        3.0,
        "Steps are outstanding and no safepoint was passed for so long: the engine is stuck.",
        unit="seconds",
        above=0,
        why="safepoints are milliseconds apart, also within a long step",
    )
    least_stuck_s: float = setting(
        1.25,
        "An engine that has computed for half a minute is stuck after 4 times the longest gap between two of its "
        "safepoints lately, within this and stuck_s.",
        unit="seconds",
        above=0,
        why="where the engine waits for a core gaps are longer, and so is the limit",
    )
    load_stuck_s: float = setting(
        60.0,
        "The same while it loads.",
        unit="seconds",
        above=0,
        why="importing torch and reading weights pass no safepoint",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """What becomes of the work of an engine that died."""

    engine_grace_s: float = setting(
        3.0,
        "The work of a lost engine waits for the next engine, if that is expected within this time and no longer; "
        "then it goes back to the dispatchers.",
        unit="seconds",
        above=0,
        why="a standby engine takes over in about one second",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class RemapConfig:
    """Layers that were dropped to make room for KV (KunServe's parameter drop)."""

    restore_after_s: float = setting(
        2.0,
        "An instance that lacks layers, and is in no group that computes with those it has, restores them by itself "
        "after so long.",
        unit="seconds",
        above=0,
        why="the group's order follows within a second, and a stream that stands longer is noticed",
    )
    load_from: str = setting(
        PEER,
        "Where weights of layers that come back are read first: in the memory of a `peer` of the node to which KV has "
        "gone (then of another one, then in the checkpoint), or in the checkpoint on `disk` at once.",
        choices=(PEER, DISK),
        why="memory is faster than a disk, and what a peer does not deliver comes from there",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Requests and answers of a dispatcher that went away, kept for the one that adopts them."""

    orphan_grace_s: float = setting(
        30.0,
        "Requests of a dispatcher that went away are computed on for so long, and their answers kept as long.",
        unit="seconds",
        above=0,
        why="a client or another dispatcher comes back sooner, and the work is not wasted for longer",
    )
    max_answers: int = setting(
        1024,
        "Finished answers that are kept at most.",
        unit="answers",
        least=1,
        why="a bound for memory: the answers of some minutes of one instance",
    )
    max_answer_tokens: int = setting(
        1 << 20,
        "Tokens of all kept answers together.",
        unit="tokens",
        least=1,
        why="a bound for memory: 4 MiB",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class InstanceReportsConfig:
    """What an instance reports to the monitor."""

    interval_s: float = setting(
        0.5,
        "Time between two regular reports to the monitor.",
        unit="seconds",
        above=0,
        why="six reports fit into the 3 s after which the monitor calls a process silent",
    )
    after_change_s: float = setting(
        0.05,
        "A change of load is reported so long after it, so that several changes share a report.",
        unit="seconds",
        above=0,
        why="dispatchers place by it: about one step late",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """Settings of one instance's core. `node` and `model` (as it reports it) are its host's to say."""

    node: str = ""
    model: str = ""
    scheduler: SchedulerConfig = section(SchedulerConfig)
    objectives: ObjectivesConfig = section(ObjectivesConfig)
    preemption: PreemptionConfig = section(PreemptionConfig)
    interrupts: InterruptsConfig = section(InterruptsConfig)
    starvation: InstanceStarvationConfig = section(InstanceStarvationConfig)
    kv_cache: KvCacheConfig = section(KvCacheConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    host_tier: HostTierConfig = section(HostTierConfig)
    migration: MigrationConfig = section(MigrationConfig)
    kv_handoff: KvHandoffConfig = section(KvHandoffConfig)
    engine_watch: EngineWatchConfig = section(EngineWatchConfig)
    recovery: RecoveryConfig = section(RecoveryConfig)
    remap: RemapConfig = section(RemapConfig)
    groups: InstanceGroupsConfig = section(InstanceGroupsConfig)
    retention: RetentionConfig = section(RetentionConfig)
    reports: InstanceReportsConfig = section(InstanceReportsConfig)
