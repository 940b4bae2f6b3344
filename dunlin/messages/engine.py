"""Instance ↔ engine: what one GPU (or one tensor-parallel set) is asked to compute, and what it answers.

The engine knows sequences by number; it knows no request, no attempt and no other instance beyond the peers that a
step names. It answers what it cannot do yet with `Unsupported`.
"""

from dataclasses import dataclass, field

from dunlin.effects import Address, record
from dunlin.messages.types import (
    F32,
    I8,
    I32,
    I64,
    Finish,
    GroupKind,
    HostRegion,
    MoveKind,
    MoveStatus,
    Part,
    Priority,
    Region,
    RemapPhase,
    Sampling,
    Verdict,
    Why,
    f32,
    i8,
    i32,
    i64,
)


@dataclass(frozen=True, slots=True)
class Open:
    """Make a sequence known before a step names it.

    `tokens` is the prompt followed by tokens generated earlier (after a failover or a preemption); `prompt_tokens`
    says where the generated part starts. `max_tokens` bounds the generated part, earlier ones included. A sampled
    token in `stop_ids` ends the sequence with STOP, the token at `max_tokens` with LENGTH. The extents are the slots in
    which the KV of the first tokens lies already, in order: written for another sequence with the same beginning, or
    for this one before the engine was restarted. Rows may start after them; nothing is written there.
    """

    sequence: int
    tokens: I32
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: I32 = field(default_factory=i32)
    extent_start: I64 = field(default_factory=i64)
    extent_length: I64 = field(default_factory=i64)


@dataclass(frozen=True, slots=True)
class Close:
    """Forget a sequence. Its slots are the instance core's; a later `Open` uses another number."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Columns: row `row[i]`'s regions that this engine retains in own slots, also of tokens computed elsewhere."""

    row: I32 = field(default_factory=i32)
    layer_start: I32 = field(default_factory=i32)
    layer_stop: I32 = field(default_factory=i32)
    start: I64 = field(default_factory=i64)
    stop: I64 = field(default_factory=i64)
    slot: I64 = field(default_factory=i64)


@dataclass(frozen=True, slots=True)
class Push:
    """Columns: row `row[i]`'s regions to send, layer by layer, to a reserved handle at a peer or the host tier.

    `peer[i]` indexes `Step.peers`; -1 never occurs: a push to the host tier has `to_host[i]` = 1.
    """

    row: I32 = field(default_factory=i32)
    layer_start: I32 = field(default_factory=i32)
    layer_stop: I32 = field(default_factory=i32)
    start: I64 = field(default_factory=i64)
    stop: I64 = field(default_factory=i64)
    handle: I64 = field(default_factory=i64)
    peer: I32 = field(default_factory=i32)
    to_host: I8 = field(default_factory=i8)


@record
class Step:
    """One iteration. Row i computes tokens `start[i]:stop[i]:stride[i]` of `sequence[i]`.

    A decode row names no token: it is the one position after the last known token's KV, and the engine keeps each
    sequence's last token, so step n+1 may be queued before step n answers. `sample[i]` = 1 where the row's last
    position yields a token. Extent j gives row `extent_row[j]` the slots `extent_start[j] … + extent_length[j]` for the
    positions it writes, in order, enough for `repeat` iterations. `after` names moves that must have landed.
    `why` is set only when the composition changed.
    """

    step: int
    sequence: I64
    start: I64
    stop: I64
    sample: I8
    extent_row: I32
    extent_start: I64
    extent_length: I64
    stride: I64 = field(default_factory=i64)
    """Empty means stride 1 for every row."""
    group: GroupKind = GroupKind.LOCAL
    part: Part = Part.LOCAL
    peers: tuple[Address, ...] = ()
    keep: Keep | None = None
    push: Push | None = None
    after: I64 = field(default_factory=i64)
    repeat: int = 1
    epoch: int = 0
    plan_version: int = 0
    why: Why | None = None


@record
class StepDone:
    """One iteration's answer. Columns over the rows that sampled: `sequence`, `token`, `logprob`, `finish` (`Finish`).

    `dropped` lists sequences whose rows did not run (they had ended); `failed` those whose rows ran and sampled
    nothing, for their logits are not finite: the engine has ended them. `top_count[i]` of the entries of `top_token`
    and `top_logprob` belong to row i. `compute_s` is the engine's time in the step, `idle_s` its wait before it.
    """

    step: int
    sequence: I64
    token: I32
    logprob: F32
    finish: I8
    dropped: I64 = field(default_factory=i64)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)
    prefill_rows: int = 0
    decode_rows: int = 0
    tokens_computed: int = 0
    compute_s: float = 0.0
    idle_s: float = 0.0
    failed: I64 = field(default_factory=i64)


@dataclass(frozen=True, slots=True)
class Interrupt:
    """At the next safepoint the named sequences' rows (all rows when `sequences` is empty) leave the step."""

    step: int
    verdict: Verdict
    sequences: I64 = field(default_factory=i64)
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class StepInterrupted:
    """Rows left a step at a safepoint: `layer` finished layers, `ring_round` rounds of the layer after it."""

    step: int
    layer: int
    ring_round: int = 0
    sequences: I64 = field(default_factory=i64)


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with the rows of a step that were suspended."""

    step: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget the suspended rows of a step; finished chunks stay valid."""

    step: int


@dataclass(frozen=True, slots=True)
class MapHost:
    """Map the node's host tier: `path` opens the kvstore's shared memory of `size_bytes`."""

    path: str
    size_bytes: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy one region of a sequence between the slab and elsewhere, in the background.

    The extents name the own slots in order of position. `sequence` 0 is nobody's: a later `Open` names slots that were
    filled ahead of it. `host` for host-tier kinds (its checksum is compared after
    the copy of HOST_TO_SLAB), `peer` and `peer_handle` for peer kinds. `chain` names the tokens up to the region's end
    and is part of what the checksum speaks of.
    """

    move: int
    kind: MoveKind
    sequence: int
    region: Region
    extent_start: I64
    extent_length: I64
    host: HostRegion | None = None
    peer: Address | None = None
    peer_handle: int = 0
    priority: Priority = Priority.KV
    chain: bytes = b""


@dataclass(frozen=True, slots=True)
class CancelMove:
    """Stop a move if it has not landed; `MoveDone` answers in any case."""

    move: int


@dataclass(frozen=True, slots=True)
class MoveDone:
    """A move ended. `checksum` is xxh3-64 (signed) of the region's identity and the bytes copied.

    `seconds` passed since it was asked for; for `busy_s` of them the engine did nothing else.
    """

    move: int
    status: MoveStatus
    checksum: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    detail: str = ""
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Remap:
    """Change which layers the engine holds, one phase at a time; `layout` is the version that results."""

    layout: int
    phase: RemapPhase
    layers: I32
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class RemapDone:
    """A phase of `Remap` ended; `slots` is the capacity now, `quantum` the slots that one granule adds."""

    layout: int
    phase: RemapPhase
    layers: I32
    slots: int
    quantum: int


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine can take steps. `kv_bytes_per_token` over all layers; `max_positions` bounds a sequence's length."""

    layers: I32
    slots: int
    quantum: int
    weights_digest: str
    kv_dtype: str
    kv_bytes_per_token: int
    max_positions: int
    vocabulary: int
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine cannot start or go on; `reason` says what, where and what to do. It exits after this."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The engine lacks what a message asked for; nothing of that message was done."""

    what: str
    detail: str = ""
    step: int = 0
    move: int = 0


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The engine's process runs, and loads. Never crosses a wire."""

    pid: int


@dataclass(frozen=True, slots=True)
class EngineExited:
    """How the engine's process ended: by its own exit `code`, or by `signal` (0: by none). `Gone` follows.

    `ended_by_us`: its host killed it, because it was told to or because the stream was lost. `back_in_s` is when it
    expects the next engine to be ready. Never crosses a wire.
    """

    code: int
    signal: int = 0
    ended_by_us: bool = False
    back_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The shared counter of safepoints passed, as the host last read it. Never crosses a wire."""

    safepoints: int


@dataclass(frozen=True, slots=True)
class StopEngine:
    """To the engine's host: end this stuck engine process; `Gone` answers. On the wire only as a recorded reason."""

    why: Why


ENGINE_COMMANDS = (Open, Close, Step, Interrupt, Resume, Discard, MapHost, Move, CancelMove, Remap)
ENGINE_EVENTS = (StepDone, StepInterrupted, MoveDone, RemapDone, EngineReady, EngineFailed, Unsupported)

__all__ = [
    "ENGINE_COMMANDS",
    "ENGINE_EVENTS",
    "CancelMove",
    "Close",
    "Discard",
    "EngineExited",
    "EngineFailed",
    "EngineReady",
    "EngineStarted",
    "Finish",
    "Interrupt",
    "Keep",
    "MapHost",
    "Move",
    "MoveDone",
    "Open",
    "Progress",
    "Push",
    "Remap",
    "RemapDone",
    "Resume",
    "Step",
    "StepDone",
    "StepInterrupted",
    "StopEngine",
    "Unsupported",
]
