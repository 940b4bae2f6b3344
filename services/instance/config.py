"""What an instance's core is told at start, one section per decision. Pure."""

from dataclasses import dataclass

from dunlin.config.fields import check, section, setting
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.interrupt import INTERRUPT_POLICIES
from dunlin.policies.overtake import OVERTAKE_POLICIES
from dunlin.policies.preemption import PREEMPTION_MODES
from dunlin.policies.victim import VICTIM_POLICIES
from services.instance.group.config import InstanceGroupsConfig
from services.instance.kv.config import (
    CheckpointConfig,
    HostTierConfig,
    KvCacheConfig,
    KvHandoffConfig,
    MigrationConfig,
    RemapConfig,
)


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
        why="the plainest (Sarathi-Serve); the default preset chooses harvest",
    )
    overtake_policy: str = setting(
        "never",
        "Which sequence starts before an older one that waits for slots: `never` any; `shorter`: an interactive one "
        "that may grow to an eighth of its length at most, while those that did may grow to an eighth of all slots. "
        "Among the long requests of a group that it leads likewise, by the slots of all members.",
        choices=tuple(OVERTAKE_POLICIES),
        why="first come, first served, as everywhere else; the default preset chooses shorter",
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
        why="the oldest gets to its end, whatever arrives behind it; the default preset chooses batch_first",
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
        why="steps are short unless prompts are very long; the default preset chooses recall_rows",
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
        "An engine that has computed for half a minute, or for 5 s after an engine that had, is stuck after 4 times "
        "the longest gap between two of its safepoints lately, within this and stuck_s; the next one after an engine "
        "that was ended so, after twice as long.",
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
