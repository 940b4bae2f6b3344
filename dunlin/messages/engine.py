"""Instance ↔ engine: what one GPU (or one tensor-parallel set) is asked to compute, and what it answers.

The engine knows sequences by number; it knows no request, no attempt and no other instance beyond the peers that a
step names. It answers what it cannot do yet with `Unsupported`.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.declare import Parties, Subject, message, number
from dunlin.messages.types import (
    F32,
    I8,
    I32,
    I64,
    GroupKind,
    GroupRole,
    HostRegion,
    MoveKind,
    MoveStatus,
    Priority,
    Region,
    RemapPhase,
    SamplingParams,
    Verdict,
    Why,
    f32,
    i8,
    i32,
    i64,
)

PARTIES = Parties("Engine", dialers=("instance",), acceptor="engine", is_service=False)


@message(command=2)
class Open:
    """Make a sequence known before a step names it.

    `tokens` is the prompt followed by tokens generated earlier (after a failover or a preemption); `prompt_tokens`
    says where the generated part starts. `max_tokens` bounds the generated part, earlier ones included. A sampled
    token in `stop_ids` ends the sequence with STOP, the token at `max_tokens` with LENGTH. The extents are the slots in
    which the KV of the first tokens lies already, in order: written for another sequence with the same beginning, or
    for this one before the engine was restarted. Rows may start after them; nothing is written there.
    """

    sequence: int = number(1)
    tokens: I32 = number(2)
    prompt_tokens: int = number(3)
    max_tokens: int = number(4)
    sampling: SamplingParams = number(5, default_factory=SamplingParams)
    stop_ids: I32 = number(6, default_factory=i32)
    extent_start: I64 = number(7, default_factory=i64)
    extent_length: I64 = number(8, default_factory=i64)


@message(command=3)
class Close:
    """Forget a sequence. Its slots are the instance core's; a later `Open` uses another number."""

    sequence: int = number(1)


@message()
class Keep:
    """Columns: row `row[i]`'s regions that this engine retains in own slots, also of tokens computed elsewhere."""

    row: I32 = number(1, default_factory=i32)
    layer_start: I32 = number(2, default_factory=i32)
    layer_stop: I32 = number(3, default_factory=i32)
    start: I64 = number(4, default_factory=i64)
    stop: I64 = number(5, default_factory=i64)
    slot: I64 = number(6, default_factory=i64)


@message()
class Push:
    """Columns: row `row[i]`'s regions to send, layer by layer, to a reserved handle at a peer or the host tier.

    `peer[i]` indexes `Step.peers`; -1 never occurs: a push to the host tier has `to_host[i]` = 1.
    """

    row: I32 = number(1, default_factory=i32)
    layer_start: I32 = number(2, default_factory=i32)
    layer_stop: I32 = number(3, default_factory=i32)
    start: I64 = number(4, default_factory=i64)
    stop: I64 = number(5, default_factory=i64)
    handle: I64 = number(6, default_factory=i64)
    peer: I32 = number(7, default_factory=i32)
    to_host: I8 = number(8, default_factory=i8)


@message(command=4, about=Subject.SEQUENCES, hot=True, reserved=(17, 18))
class Step:
    """One iteration. Row i computes tokens `start[i]:stop[i]:stride[i]` of `sequence[i]`.

    A decode row names no token: it is the one position after the last known token's KV, and the engine keeps each
    sequence's last token, so step n+1 may be queued before step n answers. `sample[i]` = 1 where the row's last
    position yields a token. Extent j gives row `extent_row[j]` the slots `extent_start[j] … + extent_length[j]` for the
    positions it writes, in order, enough for `repeat` iterations. `after` names moves that must have landed.
    `why` is set only when the composition changed.
    """

    step: int = number(1)
    sequence: I64 = number(2)
    start: I64 = number(3)
    stop: I64 = number(4)
    sample: I8 = number(5)
    extent_row: I32 = number(6)
    extent_start: I64 = number(7)
    extent_length: I64 = number(8)
    stride: I64 = number(9, default_factory=i64)
    """Empty means stride 1 for every row."""
    group: GroupKind = number(10, default=GroupKind.LOCAL)
    part: GroupRole = number(11, default=GroupRole.LOCAL)
    peers: tuple[Address, ...] = number(12, default=())
    keep: Keep | None = number(13, default=None)
    push: Push | None = number(14, default=None)
    after: I64 = number(15, default_factory=i64)
    repeat: int = number(16, default=1)
    why: Why | None = number(19, default=None)


@message(event=2, hot=True)
class StepDone:
    """One iteration's answer. Columns over the rows that sampled: `sequence`, `token`, `logprob`, `finish`
    (`FinishReason`).

    `dropped` lists sequences whose rows did not run (they had ended); `failed` those whose rows ran and sampled
    nothing, for their logits are not finite: the engine has ended them. `top_count[i]` of the entries of `top_token`
    and `top_logprob` belong to row i. `compute_s` is the engine's time in the step, `idle_s` its wait before it.
    """

    step: int = number(1)
    sequence: I64 = number(2)
    token: I32 = number(3)
    logprob: F32 = number(4)
    finish: I8 = number(5)
    dropped: I64 = number(6, default_factory=i64)
    top_count: I32 = number(7, default_factory=i32)
    top_token: I32 = number(8, default_factory=i32)
    top_logprob: F32 = number(9, default_factory=f32)
    prefill_rows: int = number(10, default=0)
    decode_rows: int = number(11, default=0)
    tokens_computed: int = number(12, default=0)
    compute_s: float = number(13, default=0.0)
    idle_s: float = number(14, default=0.0)
    failed: I64 = number(15, default_factory=i64)


@message(command=5, about=Subject.NOTHING)
class Interrupt:
    """At the next safepoint the named sequences' rows (all rows when `sequences` is empty) leave the step."""

    step: int = number(1)
    verdict: Verdict = number(2)
    sequences: I64 = number(3, default_factory=i64)
    why: Why | None = number(4, default=None)


@message(event=3)
class StepInterrupted:
    """Rows left a step at a safepoint: `layer` finished layers, `ring_round` rounds of the layer after it."""

    step: int = number(1)
    layer: int = number(2)
    ring_round: int = number(3, default=0)
    sequences: I64 = number(4, default_factory=i64)


@message(command=6)
class Resume:
    """Go on with the rows of a step that were suspended."""

    step: int = number(1)


@message(command=7)
class Discard:
    """Forget the suspended rows of a step; finished chunks stay valid."""

    step: int = number(1)


@message(command=8)
class MapHost:
    """Map the node's host tier: `path` opens the kvstore's shared memory of `size_bytes`."""

    path: str = number(1)
    size_bytes: int = number(2)
    incarnation: int = number(3)


@message(command=9)
class Move:
    """Copy one region of a sequence between the slab and elsewhere, in the background.

    The extents name the own slots in order of position. `sequence` 0 is no sequence: a later `Open` names slots that
    were filled ahead of it. `host` for host-tier kinds (its checksum is compared after the copy of HOST_TO_SLAB),
    `peer` and `peer_handle` for peer kinds. `chain` names the tokens up to the region's end
    and is part of what the checksum speaks of.
    """

    move: int = number(1)
    kind: MoveKind = number(2)
    sequence: int = number(3)
    region: Region = number(4)
    extent_start: I64 = number(5)
    extent_length: I64 = number(6)
    host: HostRegion | None = number(7, default=None)
    peer: Address | None = number(8, default=None)
    peer_handle: int = number(9, default=0)
    priority: Priority = number(10, default=Priority.KV)
    chain: bytes = number(11, default=b"")


@message(command=10)
class CancelMove:
    """Stop a move if it has not landed; `MoveDone` answers in any case."""

    move: int = number(1)


@message(event=4)
class MoveDone:
    """A move ended. `checksum` is xxh3-64 (signed) of the region's identity and the bytes copied.

    `seconds` passed since it was asked for; for `busy_s` of them the engine did nothing else.
    """

    move: int = number(1)
    status: MoveStatus = number(2)
    checksum: int = number(3, default=0)
    moved_bytes: int = number(4, default=0)
    seconds: float = number(5, default=0.0)
    detail: str = number(6, default="")
    busy_s: float = number(7, default=0.0)


@message(command=11, about=Subject.SENDER)
class Remap:
    """Change which layers the engine holds, one phase at a time; `layout` is the version that results."""

    layout: int = number(1)
    phase: RemapPhase = number(2)
    layers: I32 = number(3)
    why: Why | None = number(4, default=None)


@message(event=5)
class RemapDone:
    """A phase of `Remap` ended; `slots` is the capacity now, `quantum` the slots that one granule adds."""

    layout: int = number(1)
    phase: RemapPhase = number(2)
    layers: I32 = number(3)
    slots: int = number(4)
    quantum: int = number(5)


@message(event=6)
class EngineReady:
    """The engine can take steps. `kv_bytes_per_token` over all layers; `max_positions` bounds a sequence's length."""

    layers: I32 = number(1)
    slots: int = number(2)
    quantum: int = number(3)
    weights_digest: str = number(4)
    kv_dtype: str = number(5)
    kv_bytes_per_token: int = number(6)
    max_positions: int = number(7)
    vocabulary: int = number(8)
    deterministic: bool = number(9, default=False)


@message(event=7)
class EngineFailed:
    """The engine cannot start or go on; `reason` says what, where and what to do. It exits after this."""

    reason: str = number(1)


@message(event=8)
class Unsupported:
    """The engine lacks what a message asked for; nothing of that message was done."""

    what: str = number(1)
    detail: str = number(2, default="")
    step: int = number(3, default=0)
    move: int = number(4, default=0)


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
class EngineProgress:
    """The shared counter of safepoints passed, as the host last read it. Never crosses a wire."""

    safepoints: int


@message(about=Subject.SENDER)
class StopEngine:
    """To the engine's host: end this stuck engine process; `Gone` answers. On the wire only as a recorded reason."""

    why: Why = number(1)
