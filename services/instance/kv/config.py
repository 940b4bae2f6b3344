"""Settings of an instance's KV: its slots, copies of it elsewhere, its moves, and layers that give it room. Pure."""

from dataclasses import dataclass

from dunlin.config.fields import check, setting
from dunlin.policies.handoff import HANDOFF_POLICIES

PEER, DISK = "peer", "disk"
"""Where weights are read first (RemapConfig.load_from)."""


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
        "Sequences that leave this instance at once for orders of the manager (drains, rebalancing), beside those that "
        "it hands off.",
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
