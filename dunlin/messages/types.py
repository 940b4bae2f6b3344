"""The nouns that several conversations share. Knows no transport and no policy.

Columns are `array.array`s: a batch of rows is a handful of columns, never an object per row. On the wire a column
is one `bytes` field of little-endian items (see `dunlin/wire/codec.py`).
"""

from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated

from dunlin.effects import Address
from dunlin.messages.declare import message, number

if TYPE_CHECKING:
    Ints = array[int]
    Floats = array[float]
else:  # Python 3.11 cannot subscript array at run time
    Ints = Floats = array

I8 = Annotated[Ints, "b"]
I64_LEAST, I64_MOST = -(1 << 63), (1 << 63) - 1
"""The whole numbers that a message can carry."""

I32 = Annotated[Ints, "i"]
I64 = Annotated[Ints, "q"]
F32 = Annotated[Floats, "f"]


def i8(values: Iterable[int] = ()) -> Ints:
    """A column of 8-bit signed integers."""
    return array("b", values)


def i32(values: Iterable[int] = ()) -> Ints:
    """A column of 32-bit signed integers: token ids, counts."""
    return array("i", values)


def i64(values: Iterable[int] = ()) -> Ints:
    """A column of 64-bit signed integers: sequence and request numbers, positions, slots."""
    return array("q", values)


def f32(values: Iterable[float] = ()) -> Floats:
    """A column of 32-bit floats: log-probabilities."""
    return array("f", values)


@message(reserved=(2,))
class Header:
    """The sender of a message, with the incarnation that the receiver's core fences by."""

    sender: Address = number(1)


class RequestClass(IntEnum):
    """How urgent a request is: the papers' online and offline."""

    INTERACTIVE = 0
    BATCH = 1


class StepTimesSource(IntEnum):
    """What an instance predicts the times of its steps from. NONE: no policy of it asks. LEARNING: from nothing yet."""

    NONE = 0
    LEARNING = 1
    LEARNT = 2
    PROFILE = 3


class FinishReason(IntEnum):
    """Why a sequence produced its last token. RUNNING: it did not yet. TOO_LONG: nothing in the cluster can hold it."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5
    TOO_LONG = 6


FINISH_ERRORS = {
    FinishReason.DEADLINE: "deadline_exceeded",
    FinishReason.ERROR: "generation_failed",
    FinishReason.TOO_LONG: "too_long",
}
"""The ends of admitted requests that are errors, with the kind of the error in logs and traces."""


class GroupKind(IntEnum):
    """What instances that step together do together. ELASTIC, of a group alone: RING or MASTERS, as its leader decides
    for each step.
    """

    LOCAL = 0
    RING = 1
    MASTERS = 2
    PIPELINE = 3
    ELASTIC = 4


class GroupRole(IntEnum):
    """What a member does in its group (`role` in the plan and in a Step).

    PREFILL: it computes prompts, and hands each sequence over after its first token; DECODE: it goes on with those.
    LEADER: it composes its group's steps; MEMBER: it computes its part of them. Both run requests of their own, too.
    """

    LOCAL = 0
    RING_MEMBER = 1
    MASTER = 2
    HOLDER = 3
    STAGE = 4
    PREFILL = 5
    DECODE = 6
    LEADER = 7
    MEMBER = 8


class Verdict(IntEnum):
    """What becomes of rows that leave a running step at a safepoint."""

    DISCARD = 0
    SUSPEND = 1


class RemapPhase(IntEnum):
    """The phases in which an engine changes the layers it holds."""

    PREPARE = 0
    DROP_WEIGHTS = 1
    RELEASE_KV = 2
    ABORT = 3
    LOAD = 4
    COMMIT = 5


class Priority(IntEnum):
    """Order of transfers on one link: an activation never waits longer than one chunk of anything else."""

    ACTIVATION = 0
    KV = 1
    CHECKPOINT = 2
    PARAMETERS = 3


class Payload(IntEnum):
    """What a transfer carries. PARTIAL: the `(out, lse)` of attention over a part of the keys."""

    KV = 0
    ACTIVATION = 1
    PARTIAL = 2
    WEIGHTS = 3


class TransferKind(IntEnum):
    """From where to where KV moves."""

    SLAB_TO_HOST = 0
    HOST_TO_SLAB = 1
    SLAB_TO_PEER = 2
    PEER_TO_SLAB = 3


class TransferStatus(IntEnum):
    """How a move ended. CORRUPT: the copied bytes do not match the checksum, nothing of them may be used."""

    OK = 0
    CORRUPT = 1
    CANCELLED = 2
    FAILED = 3


@message()
class Figure:
    """One number that a decision compared."""

    name: str = number(1)
    value: float = number(2)


MAX_ALTERNATIVES = 3
"""Options that were not taken and that a policy's reason names."""


@message()
class RejectedOption:
    """One alternative that a decision did not take, and why."""

    option: str = number(1)
    reason: str = number(2)


@message()
class Why:
    """The reason that a decision message carries; tracing, `dunlin explain` and the tests read nothing else."""

    policy: str = number(1)
    chosen: str = number(2, default="")
    figures: tuple[Figure, ...] = number(3, default=())
    rejected: tuple[RejectedOption, ...] = number(4, default=())


@message()
class Region:
    """Layers `[layer_start, layer_stop)` of the tokens `[start, stop)` of a sequence."""

    layer_start: int = number(1)
    layer_stop: int = number(2)
    start: int = number(3)
    stop: int = number(4)


@message()
class HostRegion:
    """A region in a host tier, named by its handle.

    `offset_bytes` and `length_bytes` lie inside the tier's shared memory; `checksum` is xxh3-64 of the region's
    identity and its bytes (see `dunlin.kv.region_identity`; as a signed 64-bit integer), 0 until committed;
    `generation` counts the uses of that room.
    """

    handle: int = number(1)
    generation: int = number(2)
    offset_bytes: int = number(3)
    length_bytes: int = number(4)
    checksum: int = number(5, default=0)


@message()
class KeptRegion:
    """A committed host region that a sequence can start from.

    `chain` names the tokens `[0, region.stop)` (see `dunlin.kv.prefix_hash`): KV that fits other tokens is of no use.
    """

    region: Region = number(1)
    host: HostRegion = number(2)
    chain: bytes = number(3, default=b"")


class GrammarKind(IntEnum):
    """The language of a grammar's text. LARK: Lark's, or GBNF where the text has `::=`."""

    JSON_SCHEMA = 0
    REGEX = 1
    LARK = 2


@message()
class Grammar:
    """What the generated text must match. A JSON schema is JSON text."""

    kind: GrammarKind = number(1)
    text: str = number(2)


@message()
class SamplingParams:
    """How the next token is chosen: argmax of filtered logits / temperature + Gumbel noise.

    The noise is a function of (seed, choice, position, token). `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and
    `min_p` 0 filter nothing. `logprobs` is None for none, 0 for the chosen token's alone, n for the n best besides;
    `prompt_logprobs` alike of the prompt's tokens after the first.

    Only tokens that `grammar` can go on with are chosen; the end tokens come when it is matched. No stop token is
    chosen before `min_tokens` were generated, and no token outside `allowed_tokens`; empty: all are allowed. The tokens
    `bad_tokens[bad_stops[i - 1]:bad_stops[i]]` never come one after the other in the generated text.
    """

    temperature: float = number(1, default=1.0)
    top_k: int = number(2, default=0)
    top_p: float = number(3, default=1.0)
    min_p: float = number(4, default=0.0)
    presence_penalty: float = number(5, default=0.0)
    frequency_penalty: float = number(6, default=0.0)
    repetition_penalty: float = number(7, default=1.0)
    seed: int = number(8, default=0)
    choice: int = number(9, default=0)
    logprobs: int | None = number(10, default=None)
    bias_tokens: I32 = number(11, default_factory=i32)
    bias_values: F32 = number(12, default_factory=f32)
    grammar: Grammar | None = number(13, default=None)
    min_tokens: int = number(14, default=0)
    allowed_tokens: I32 = number(15, default_factory=i32)
    bad_tokens: I32 = number(16, default_factory=i32)
    bad_stops: I32 = number(17, default_factory=i32)
    prompt_logprobs: int | None = number(18, default=None)


@message()
class PromptScores:
    """Columns: log-probabilities of prompt tokens. Row i: those of the `count[i]` tokens of `sequence[i]` from
    `start[i]` on (the first token of a prompt has none), each given the tokens before it, of the model's own logits.

    Of each token `logprob` and `rank` (1: none is likelier), and the `best[i]` likeliest tokens there, best first, in
    `top_token` and `top_logprob`.
    """

    sequence: I64 = number(1, default_factory=i64)
    start: I32 = number(2, default_factory=i32)
    count: I32 = number(3, default_factory=i32)
    best: I32 = number(4, default_factory=i32)
    logprob: F32 = number(5, default_factory=f32)
    rank: I32 = number(6, default_factory=i32)
    top_token: I32 = number(7, default_factory=i32)
    top_logprob: F32 = number(8, default_factory=f32)


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
class Serve:
    """Columns: attention that this engine computes for rows of other members, over keys that lie here.

    Part i is of the queries `start[i]:stop[i]:stride[i]` of `peers[master[i]]`'s row of `sequence[i]`. Tokens
    `span_start[j] … span_stop[j]` of part `span_part[j]` lie in the own slots from `slot[j]` on. The parts of one
    master are in the order of its rows, and their spans, those that touch taken together, the ones that it names.
    """

    sequence: I64 = number(1, default_factory=i64)
    start: I64 = number(2, default_factory=i64)
    stop: I64 = number(3, default_factory=i64)
    stride: I64 = number(4, default_factory=i64)
    master: I32 = number(5, default_factory=i32)
    span_part: I32 = number(6, default_factory=i32)
    span_start: I64 = number(7, default_factory=i64)
    span_stop: I64 = number(8, default_factory=i64)
    slot: I64 = number(9, default_factory=i64)
