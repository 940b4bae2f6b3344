"""Instance ↔ engine: what one GPU (or one tensor-parallel set) is asked to compute, and what it answers.

The engine knows sequences by number; it knows no request, no attempt and no other instance beyond the peers that a
step names. Every `Step` and `Resume` has exactly one `StepDone`, every `Interrupt` one `Interrupted`, every `Transfer`
one `TransferDone`, every `Remap` one `RemapDone`; `Unsupported` takes the place of any of them and says that nothing of
that command was done. Answers carry the fence of what they answer: step number, ticket or layout; the engine's
incarnation is in the header.
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
    Keep,
    Payload,
    Priority,
    PromptScores,
    Region,
    RemapPhase,
    SamplingParams,
    Serve,
    TransferKind,
    TransferStatus,
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
    for this one before the engine was restarted. An extent from -1 is of tokens whose KV lies at other engines. Rows
    may start after them; nothing is written there. With `sampling.prompt_logprobs` those of the `scored` tokens after
    the first are known and not computed again, and no row may start after token `scored` before the next are computed.
    `adapter` is the digest of the LoRA adapter that its tokens are computed with; "": of none.
    """

    sequence: int = number(1)
    tokens: I32 = number(2)
    prompt_tokens: int = number(3)
    max_tokens: int = number(4)
    sampling: SamplingParams = number(5, default_factory=SamplingParams)
    stop_ids: I32 = number(6, default_factory=i32)
    extent_start: I64 = number(7, default_factory=i64)
    extent_length: I64 = number(8, default_factory=i64)
    scored: int = number(9, default=0)
    adapter: str = number(12, default="")


@message(command=3)
class Close:
    """Forget a sequence. Its slots are the instance core's; a later `Open` uses another number."""

    sequence: int = number(1)


@message(command=4, about=Subject.SEQUENCES, hot=True, reserved=(14, 16, 17, 18))
class Step:
    """One iteration over the layers `[layer_start, layer_stop)`. Row i computes tokens `start[i]:stop[i]:stride[i]` of
    `sequence[i]`.

    A decode row names no token: it is the one position after the last known token's KV, and the engine keeps each
    sequence's last token, so step n+1 may be queued before step n answers. `sample[i]` = 1 where the row's last
    position yields a token. Extent j gives row `extent_row[j]` the slots `extent_start[j] … + extent_length[j]` for the
    positions it writes, in order. `after` names transfers that must have landed: a step that waits for one holds up no
    step behind it that shares no sequence with it. `why` is set only when the composition changed.

    A step that starts after the first layer takes its rows' hidden states out of the transit room `hidden_in`; one that
    stops before the last leaves them in the room `hidden_out` and samples nothing. The last stage of a pipeline leaves
    the tokens that it sampled in its `hidden_out`, and the first learns them from its `hidden_in`. Rooms name rows by
    sequence and tokens: members of a group number a group's sequences alike.

    Span j says that tokens `span_start[j]:span_stop[j]:span_stride[j]` of row `span_row[j]`'s sequence lie at
    `peers[span_holder[j]]`; the tokens of no span lie here. MASTERS: in every layer the row's queries go to the holder,
    which answers for the span by its own step's `serve`. RING: the spans are the other stripes of what the members'
    steps compute together, whose K/V come here while the row's own go there; but tokens before the stripes, where
    `span_asked[j]` = 1, lie at their holder, which is asked for them as by MASTERS. A row with stripes elsewhere writes
    its extents for this step alone, and what stays of the stripes is what `keep` names; one without is as by MASTERS.
    Either goes through transit rooms: this engine writes for `peers[i]` into that one's room `peer_room[i]` and reads
    `own_room[i]`. `exchange` is the number that the members' steps of one iteration share. Single rows of such a step
    leave it as by DISCARD; an Interrupt of all rows also ends what it serves, but the whole step can be suspended by
    its number; and where a member's step ends early, those that need it end, too.
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
    after: I64 = number(15, default_factory=i64)
    why: Why | None = number(19, default=None)
    layer_start: int = number(20, default=0)
    layer_stop: int = number(21, default=0)
    """0: the layer after the last one held."""
    hidden_in: int = number(22, default=0)
    hidden_out: int = number(23, default=0)
    layout: int = number(24, default=0)
    """The layout that the step was composed for; an engine of another one refuses the step."""
    span_row: I32 = number(25, default_factory=i32)
    span_start: I64 = number(26, default_factory=i64)
    span_stop: I64 = number(27, default_factory=i64)
    span_holder: I32 = number(28, default_factory=i32)
    exchange: int = number(29, default=0)
    peer_room: I64 = number(30, default_factory=i64)
    own_room: I64 = number(31, default_factory=i64)
    span_stride: I64 = number(32, default_factory=i64)
    """Empty means stride 1 for every span."""
    serve: Serve | None = number(33, default=None)
    preemptible: bool = number(34, default=False)
    """Rows may leave it at a safepoint even if it has decode rows alone; such a step has no safepoint otherwise."""
    span_asked: I8 = number(35, default_factory=i8)
    """Empty: no span of a ring, every span of masters."""


@message(event=2, hot=True)
class StepDone:
    """The only answer to a `Step` or a `Resume`. Columns over the rows that sampled: `sequence`, `token`, `logprob`,
    `finish` (`FinishReason`).

    `dropped` lists sequences whose rows did not run (they had ended); `failed` those whose rows ran and sampled
    nothing, for their logits are not finite: the engine has ended them; `left` those whose rows left
    before their end (at an `Interrupt`, or because a peer is gone), which computed nothing that counts. `top_count[i]`
    of the entries of `top_token` and `top_logprob` belong to row i. `compute_s` is the engine's time in the step,
    `idle_s` its wait before it. `cut_short`: a step with peers ended before its last layer, and could perhaps not tell
    them: they may wait for it. `scores`: log-probabilities of prompt tokens, of the rows that asked for them.
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
    left: I64 = number(16, default_factory=i64)
    cut_short: bool = number(17, default=False)
    scores: PromptScores | None = number(18, default=None)


@message(command=5, about=Subject.SEQUENCES, reserved=(1,))
class Interrupt:
    """At the next safepoint the rows of the named sequences (all rows when `sequence` is empty) leave the running step
    and every queued step numbered up to `up_to_step`; the other rows go on.

    DISCARD: what the row computed in this step is forgotten, the KV of earlier steps stays valid. SUSPEND: a row of the
    running step is parked where it stands (hidden states, and inside attention its queries and partial result), until
    `Resume`, `Discard` or `Close`. Rows of queued steps have computed nothing and are forgotten under either verdict.
    A step of decode rows alone has no safepoint, unless it is `preemptible`: it ends first. With `step`, all rows of
    that step leave and it serves no peer any more; other steps are not touched, and `sequence` is empty. SUSPEND with
    `step` parks a step with peers whole, begun or queued: its rows, and what it serves and has exchanged, until it is
    resumed or discarded by that number (`parked_step`). Each member stands where it stood, and none waits for another;
    steps of another exchange may follow once all members have answered.
    """

    verdict: Verdict = number(2)
    sequence: I64 = number(3, default_factory=i64)
    why: Why | None = number(4, default=None)
    ticket: int = number(5, default=0)
    up_to_step: int = number(6, default=0)
    step: int = number(7, default=0)


@message(event=3, reserved=(1, 2, 3))
class Interrupted:
    """The only answer to an `Interrupt`. Columns over the rows that left: `step` is the one that row i left, `layer`
    the layers that it had finished there, `block` the pieces of the attention of the layer after them; `parked` = 1
    where the row can be resumed (SUSPEND, and the engine had room to keep it).

    Empty when no row was left to interrupt. Rows of queued steps left at layer 0. `parked_step`: the step with peers
    that is parked whole (0: none); it has its own answer, in which its rows have left.
    """

    sequence: I64 = number(4, default_factory=i64)
    ticket: int = number(5, default=0)
    step: I64 = number(6, default_factory=i64)
    layer: I32 = number(7, default_factory=i32)
    block: I32 = number(8, default_factory=i32)
    parked: I8 = number(9, default_factory=i8)
    parked_step: int = number(10, default=0)


@message(command=6, about=Subject.SEQUENCES)
class Resume:
    """Queue the parked rows of the sequences, which stand at the same layer and block, as a step numbered `step`.

    They finish the layers that are left, and sample where they would have. `after` as in `Step`. With `parked_step` the
    step with peers that was parked under that number goes on as `step`, and `sequence` is empty: rows of sequences
    that were closed meanwhile are dropped. Refused, it is forgotten.
    """

    step: int = number(1)
    sequence: I64 = number(2, default_factory=i64)
    after: I64 = number(3, default_factory=i64)
    why: Why | None = number(4, default=None)
    parked_step: int = number(5, default=0)


@message(command=7, reserved=(1,))
class Discard:
    """Forget the parked rows of the sequences; the KV of earlier steps stays valid. Not answered; those that are not
    parked are ignored. With `parked_step` the step with peers parked under that number is forgotten, too: its peers'
    steps that need it end.
    """

    sequence: I64 = number(2, default_factory=i64)
    parked_step: int = number(3, default=0)


@message(command=8)
class MapHost:
    """Map the node's host tier: `path` opens the kvstore's shared memory of `size_bytes`."""

    path: str = number(1)
    size_bytes: int = number(2)
    incarnation: int = number(3)


@message(command=9)
class Transfer:
    """Copy one region between the KV cache and the host tier or a peer, in the background, in chunks by priority.

    The extents name the own slots in order of position. `sequence` 0 is no sequence: a later `Open` names slots that
    were filled ahead of it. `host` for host-tier kinds (its checksum is compared after the copy of HOST_TO_SLAB).
    `peer` and `peer_handle` for peer kinds: the receiver's open room (0: KV goes into no room, and stays in the node),
    whose slots are `peer_extent_*` where the sender writes straight into the receiver's arena. `chain` names the tokens
    up to the region's end and is part of what the checksum speaks of. `step_bytes` bounds the bytes copied between two
    safepoints of a step (0: the engine's own bound).

    SLAB_TO_PEER writes, PEER_TO_SLAB is the receiver's own look at what was written: it hashes the named slots, and
    answers OK only where they match `checksum`, which the sender's `TransferDone` said. The payloads ACTIVATION and
    PARTIAL lie in transit rooms: `length_bytes` (0: the rows that steps left there) from the beginning of the own
    `room` and of the peer's `peer_handle`; they have no extents. Where one was sent the own room is empty after it;
    where a look finds other bytes, too, so that no step reads them. With `step` the bytes are those that a step writes
    which was sent before and has not answered: each layer is copied once the step has finished it, a room at its end.
    """

    ticket: int = number(1)
    kind: TransferKind = number(2)
    sequence: int = number(3)
    region: Region = number(4)
    extent_start: I64 = number(5)
    extent_length: I64 = number(6)
    host: HostRegion | None = number(7, default=None)
    peer: Address | None = number(8, default=None)
    peer_handle: int = number(9, default=0)
    priority: Priority = number(10, default=Priority.KV)
    chain: bytes = number(11, default=b"")
    payload: Payload = number(12, default=Payload.KV)
    step_bytes: int = number(13, default=0)
    layout: int = number(14, default=0)
    """The own layout that the extents belong to."""
    peer_extent_start: I64 = number(15, default_factory=i64)
    peer_extent_length: I64 = number(16, default_factory=i64)
    room: int = number(17, default=0)
    length_bytes: int = number(18, default=0)
    checksum: int = number(19, default=0)
    peer_layout: int = number(20, default=0)
    """The peer's layout that `peer_extent_*` belong to; the transfer fails when the peer's is another one."""
    step: int = number(21, default=0)


@message(command=10)
class CancelTransfer:
    """Stop a transfer if it has not landed; `TransferDone` answers in any case."""

    ticket: int = number(1)


@message(event=4)
class TransferDone:
    """A transfer ended. `checksum` is xxh3-64 (signed) of the region's identity and the bytes copied.

    `seconds` passed since it was asked for; for `busy_s` of them the engine did nothing else.
    """

    ticket: int = number(1)
    status: TransferStatus = number(2)
    checksum: int = number(3, default=0)
    moved_bytes: int = number(4, default=0)
    seconds: float = number(5, default=0.0)
    detail: str = number(6, default="")
    busy_s: float = number(7, default=0.0)


@message(command=12)
class Meet:
    """Another engine to exchange payloads with; `metadata` is what that engine's `EngineReady.agent` said."""

    peer: Address = number(1)
    metadata: bytes = number(2, default=b"")


@message(command=13)
class Forget:
    """The peer is gone: its transfers end as FAILED, its memory is unmapped, and before any later command runs no peer
    can write here that does not meet this engine anew. `Met` answers with the new `agent`.
    """

    peer: Address = number(1)


@message(command=14)
class OpenPeerRoom:
    """Peers that name the room `handle` may write these own slots, in order of position: from now on, whatever the
    engine is computing. A handle is never used twice.
    """

    handle: int = number(1)
    extent_start: I64 = number(2, default_factory=i64)
    extent_length: I64 = number(3, default_factory=i64)


@message(command=15)
class ClosePeerRoom:
    """No peer writes into the room once any later command runs; transfers into it fail. Not answered."""

    handle: int = number(1)


@message(event=9)
class Met:
    """The answer to `Meet`; `detail` says why the peer cannot be reached, empty if it can.

    With an `agent`: what peers need from now on to reach this engine's memory. Answers `Forget`, after which what they
    were told before is void, or is said unasked.
    """

    peer: Address = number(1)
    detail: str = number(2, default="")
    agent: bytes = number(3, default=b"")


@message()
class LayerSource:
    """Where LOAD reads the weights of a layer: from a `peer` that was met and holds it, or from the file `path` (host
    memory that another process shares: the layer's weights lie at `offset_bytes`). Neither: the checkpoint on disk.
    """

    layer: int = number(1)
    peer: Address | None = number(2, default=None)
    path: str = number(3, default="")
    offset_bytes: int = number(4, default=0)


@message(command=11, about=Subject.SENDER)
class Remap:
    """Change which layers the engine holds to `layers`, one phase at a time; `layout` is the version that results.

    Fewer layers: PREPARE, DROP_WEIGHTS, RELEASE_KV; more: PREPARE, LOAD, COMMIT. Layers and slots change between two
    steps: with the answers of DROP_WEIGHTS and COMMIT `layout` is in force, and steps and transfers that name another
    one are refused. KV stays, but for slots beyond a smaller capacity (PREPARE of more layers) and for the layers that
    RELEASE_KV gives up. ABORT ends the change where it stands: a phase that has not answered is answered with
    `Unsupported` first. `sources` name where LOAD reads; a layer that none names comes from the checkpoint.
    """

    layout: int = number(1)
    phase: RemapPhase = number(2)
    layers: I32 = number(3)
    why: Why | None = number(4, default=None)
    sources: tuple[LayerSource, ...] = number(5, default=())


@message(event=5)
class RemapDone:
    """A phase of `Remap` ended: the `layers` held and the `slots` of each of them from now on; `quantum` is the slots
    that one granule adds to a layer.
    """

    layout: int = number(1)
    phase: RemapPhase = number(2)
    layers: I32 = number(3)
    slots: int = number(4)
    quantum: int = number(5)


@message(event=6)
class EngineReady:
    """The engine can take steps. `kv_bytes_per_token` over all layers; `max_positions` bounds a sequence's length.

    `weights_digest` is the root of the digests of the outer blocks and of every layer of the model, held or not;
    `layer_digests` are those of all layers, in order. `agent` is what a peer needs to reach this engine's memory.
    `adapters` are the digests of the LoRA adapters that sequences may have.
    """

    layers: I32 = number(1)
    slots: int = number(2)
    quantum: int = number(3)
    weights_digest: str = number(4)
    kv_dtype: str = number(5)
    kv_bytes_per_token: int = number(6)
    max_positions: int = number(7)
    vocabulary: int = number(8)
    deterministic: bool = number(9, default=False)
    layout: int = number(10, default=0)
    layer_digests: tuple[str, ...] = number(11, default=())
    agent: bytes = number(12, default=b"")
    arena: int = number(13, default=0)
    """Names this use of the engine's memory: KV lies where it lay as long as it is the same."""
    model_layers: int = number(14, default=0)
    """Layers of the model, held or not; 0: `layers` are all."""
    adapters: tuple[str, ...] = number(15, default=())


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
    ticket: int = number(4, default=0)
    layout: int = number(5, default=0)


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The engine's process runs, and loads. Never crosses a wire."""

    pid: int


@dataclass(frozen=True, slots=True)
class EngineExited:
    """How the engine's process ended: by its own exit `code`, or by `signal` (0: by none). `Gone` follows.

    `ended_by_us`: its host killed it, because it was told to or because the stream was lost. `back_in_s` is when it
    expects the next engine to be ready. `incarnation` is the engine's, which may have said nothing yet. Never crosses
    a wire.
    """

    code: int
    signal: int = 0
    ended_by_us: bool = False
    back_in_s: float = 0.0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """The shared counter of safepoints passed, as the host last read it. Never crosses a wire."""

    safepoints: int


@message(about=Subject.SENDER)
class StopEngine:
    """To the engine's host: end this stuck engine process; `Gone` answers. On the wire only as a recorded reason."""

    why: Why = number(1)
