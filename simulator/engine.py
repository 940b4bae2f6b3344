"""A model of an engine for `simulator/world.py`: exact times, no tensor, and a slab that notices every misuse.

Each slot holds a digest of all tokens up to the one whose KV would lie there. A row reads the slots of its sequence
before it computes, so a slot that was reused too early, restored wrongly or shared by mistake raises. The next token is
a pure function of all tokens before it, so a stream can be checked for exactness after any recovery.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.identity import identity
from dunlin.messages.engine import (
    CancelMove,
    Close,
    EngineExited,
    EngineReady,
    MapHost,
    Move,
    MoveDone,
    Open,
    Progress,
    Step,
    StepDone,
    StopEngine,
    Unsupported,
)
from dunlin.messages.types import Finish, HostRegion, MoveKind, MoveStatus, f32, i8, i32, i64
from simulator.world import World

VOCABULARY = 1000
WILD = (4, 6, 7, 8, 11)
"""Signals after which a slab may hold anything."""
_MASK = (1 << 63) - 1


def absorb(digest: int, token: int) -> int:
    """The digest of a text that is one token longer."""
    return (digest * 6364136223846793005 + token * 2 + 1442695040888963407) & _MASK


def digest_of(tokens: Iterable[int]) -> int:
    """The digest of a whole text."""
    digest = 0
    for token in tokens:
        digest = absorb(digest, token)
    return digest


def token_after(digest: int, seed: int = 0, vocabulary: int = VOCABULARY) -> int:
    """What the fake model says after the text of this digest."""
    mixed = absorb(digest, seed + 7)
    return (mixed ^ (mixed >> 31)) % vocabulary


def continuation(tokens: Iterable[int], count: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    """The `count` tokens that any exact stream has after `tokens`, as long as nothing stops it."""
    digest, said = digest_of(tokens), list[int]()
    for _ in range(count):
        said.append(token_after(digest, seed, vocabulary))
        digest = absorb(digest, said[-1])
    return said


class HostTier:
    """The host tier's memory: what lies at an offset. Shared by engines, survives them, and can be damaged."""

    def __init__(self) -> None:
        self.contents: dict[int, list[int]] = {}

    def write(self, host: HostRegion, content: list[int]) -> None:
        """Store a region."""
        self.contents[host.offset_bytes] = list(content)

    def read(self, host: HostRegion) -> list[int]:
        """What lies there, whoever wrote it."""
        return self.contents.get(host.offset_bytes, [])

    def flip(self, offset_bytes: int) -> None:
        """Damage one region."""
        self.contents[offset_bytes][0] ^= 1


@dataclass(slots=True)
class ModelSequence:
    """An open sequence: `digests[i]` covers the tokens up to i, `slots[i]` is where the KV of token i lies."""

    opened: Open
    tokens_max: int
    tokens: list[int]
    digests: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    ended: bool = False
    tenant: str = ""

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.digests.append(absorb(self.digests[-1] if self.digests else 0, token))


@dataclass(frozen=True, slots=True)
class StepOver:
    """The running step's time is up."""

    step: int


@dataclass(frozen=True, slots=True)
class MoveOver:
    """A move's time is up."""

    move: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The host reads the counter of safepoints."""


class EngineModel:
    """One engine. A step takes `step_s`, and `token_s` more for each token computed; a move takes `move_s`.

    `is_stuck`: it passes no safepoint and answers nothing, while its host goes on reading the counter. Misuse by the
    instance raises AssertionError, except what a real engine answers in the course of things (rows of sequences that
    ended or closed are dropped). `audit` False leaves the slab unread, for speed. `tenant_of` says whose a sequence is:
    what one tenant's sequence wrote must never be read by another's.
    """

    def __init__(self, instance: Address, tier: HostTier | None = None, **settings: Any) -> None:
        self.address = Address("engine", instance.name)
        self.is_stuck = False
        self.safepoints = 0
        self.steps: list[Step] = []
        self.most_queued = 0
        self._instance = instance
        self._tier = tier if tier is not None else HostTier()
        self.step_s: float = settings.pop("step_s", 0.01)
        self.token_s: float = settings.pop("token_s", 0.0)
        self.move_s: float = settings.pop("move_s", 0.005)
        self.move_busy_s: float = settings.pop("move_busy_s", 0.001)
        self.load_s: float = settings.pop("load_s", 0.0)
        self.progress_s: float | None = settings.pop("progress_s", None)
        self._audit: bool = settings.pop("audit", True)
        self._tenant_of: Callable[[int], str] = settings.pop("tenant_of", lambda sequence: "")
        self.ready = make_ready(**settings)
        self.slab: list[int | None] = [None] * self.ready.slots
        self.tenants: list[str | None] = [None] * self.ready.slots
        self._sequences: dict[int, ModelSequence] = {}
        self._queue: deque[Step] = deque()
        self._is_running = False
        self._moves: dict[int, Move] = {}
        self._is_mapped = False

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Anything that an instance or this engine's own timers say."""
        if isinstance(message, Tick):
            assert self.progress_s is not None
            return [Send(self._instance, Progress(self.safepoints)), After(self.progress_s, message)]
        if isinstance(message, Joined):
            ticking = [After(self.progress_s, Tick())] if self.progress_s is not None else []
            return [After(self.load_s, self.ready), *ticking]
        if isinstance(message, EngineReady):
            return [Send(self._instance, message)]
        if self.is_stuck or isinstance(message, Gone | StopEngine):
            return []
        return self._obey(message)

    def take_over(self, before: "EngineModel", trusted: bool) -> None:
        """The slab is the one that an engine before left: torn where it was writing, or nonsense if it went wild."""
        if before.ready != self.ready:
            return
        self.slab = before.slab if trusted else [-1] * len(before.slab)
        self.tenants = before.tenants
        torn: list[int] = []
        for step in before._queue:
            for slots in _spans(step):
                torn += slots
        for move in before._moves.values():
            if move.kind is MoveKind.HOST_TO_SLAB:
                torn += _slots(move.extent_start, move.extent_length)
        for slot in torn:
            self.slab[slot] = -2

    @property
    def open_sequences(self) -> list[int]:
        """Sequences opened and not closed."""
        return list(self._sequences)

    def _obey(self, message: Message) -> list[Effect]:
        if isinstance(message, Open):
            return self._on_open(message)
        if isinstance(message, Close):
            self._sequences.pop(message.sequence, None)
            return []
        if isinstance(message, Step):
            return self._on_step(message)
        if isinstance(message, StepOver):
            return self._on_step_over()
        if isinstance(message, Move):
            assert message.move not in self._moves, f"move {message.move} is named twice"
            self._moves[message.move] = message
            return [After(self.move_s, MoveOver(message.move))]
        if isinstance(message, CancelMove):
            return self._end_move(message.move, MoveStatus.CANCELLED)
        if isinstance(message, MoveOver):
            return self._on_move_over(message.move)
        if isinstance(message, MapHost):
            self._is_mapped = True
            return []
        return [Send(self._instance, Unsupported(type(message).__name__))]

    def _on_open(self, message: Open) -> list[Effect]:
        assert message.sequence not in self._sequences, f"sequence {message.sequence} is open already"
        tokens_max = min(message.prompt_tokens + message.max_tokens, self.ready.max_positions)
        assert 0 < len(message.tokens) < tokens_max, f"{len(message.tokens)} tokens of at most {tokens_max}"
        opened = self._sequences[message.sequence] = ModelSequence(message, tokens_max, [])
        opened.tenant = self._tenant_of(message.sequence)
        for token in message.tokens:
            opened.append(token)
        opened.slots = _slots(message.extent_start, message.extent_length)
        assert len(opened.slots) <= len(opened.tokens), f"sequence {message.sequence}: KV of more tokens than it has"
        assert all(0 <= slot < len(self.slab) for slot in opened.slots), f"slots beyond a slab of {len(self.slab)}"
        return []

    # --- steps ---

    def _on_step(self, step: Step) -> list[Effect]:
        assert len(step.sequence), f"step {step.step} has no rows"
        assert len(set(step.sequence)) == len(step.sequence), f"step {step.step} names a sequence twice"
        self.steps.append(step)
        self._queue.append(step)
        self.most_queued = max(self.most_queued, len(self._queue))
        return self._begin()

    def _begin(self) -> list[Effect]:
        """Start the first step, unless one runs or it waits for a move."""
        if self._is_running or not self._queue or any(move in self._moves for move in self._queue[0].after):
            return []
        self._is_running = True
        step, tokens = self._queue[0], 0
        for start, stop in zip(step.start, step.stop, strict=True):
            tokens += stop - start
        return [After(self.step_s + self.token_s * tokens, StepOver(step.step))]

    def _on_step_over(self) -> list[Effect]:
        step = self._queue.popleft()
        self._is_running = False
        self.safepoints += 4
        return [Send(self._instance, self._answer(step)), *self._begin()]

    def _answer(self, step: Step) -> StepDone:
        done = StepDone(step.step, i64(), i32(), f32(), i8())
        prefill_rows = decode_rows = computed = 0
        spans = _spans(step)
        for row, number in enumerate(step.sequence):
            sequence = self._sequences.get(number)
            if sequence is None or sequence.ended:
                done.dropped.append(number)
                continue
            start, stop = step.start[row], step.stop[row]
            self._compute(sequence, start, stop, spans[row])
            computed += stop - start
            is_decode = stop - start == 1 and start >= sequence.opened.prompt_tokens
            decode_rows += is_decode
            prefill_rows += not is_decode
            if step.sample[row]:
                self._sample(number, sequence, stop, done)
        return StepDone(
            done.step,
            done.sequence,
            done.token,
            done.logprob,
            done.finish,
            done.dropped,
            done.top_count if done.top_token else i32(),
            done.top_token,
            done.top_logprob,
            prefill_rows,
            decode_rows,
            computed,
            self.step_s,
        )

    def _compute(self, sequence: ModelSequence, start: int, stop: int, slots: list[int]) -> None:
        name = sequence.opened.sequence
        assert 0 <= start < stop <= len(sequence.tokens), f"{name}: {start} to {stop} of {len(sequence.tokens)} tokens"
        assert start <= len(sequence.slots), f"{name}: token {start} is computed, KV ends at {len(sequence.slots)}"
        assert len(slots) >= stop - start, f"{name}: {stop - start} tokens into {len(slots)} slots"
        if self._audit:
            for position in range(start):
                found = self.slab[sequence.slots[position]]
                assert found == sequence.digests[position], f"{name}: slot of token {position} holds another's KV"
                tenant = self.tenants[sequence.slots[position]]
                assert tenant in (None, sequence.tenant), f"{name}: tenant {sequence.tenant} reads what {tenant} wrote"
        del sequence.slots[start:]
        for position, slot in zip(range(start, stop), slots, strict=False):
            assert 0 <= slot < len(self.slab), f"{name}: slot {slot} in a slab of {len(self.slab)}"
            self.slab[slot] = sequence.digests[position]
            self.tenants[slot] = sequence.tenant
            sequence.slots.append(slot)

    def _sample(self, number: int, sequence: ModelSequence, stop: int, done: StepDone) -> None:
        assert stop == len(sequence.tokens), f"sequence {number}: samples after {stop} of {len(sequence.tokens)} tokens"
        sampling = sequence.opened.sampling
        token = token_after(sequence.digests[-1], sampling.seed, self.ready.vocabulary)
        sequence.append(token)
        finish = Finish.RUNNING
        if token in sequence.opened.stop_ids:
            finish = Finish.STOP
        elif len(sequence.tokens) >= sequence.tokens_max:
            finish = Finish.LENGTH
        sequence.ended = finish is not Finish.RUNNING
        done.sequence.append(number)
        done.token.append(token)
        done.logprob.append(-(token % 8) / 8)
        done.finish.append(finish)
        tops = sampling.logprobs or 0
        done.top_count.append(tops)
        if tops:
            done.top_token.extend((token + other) % self.ready.vocabulary for other in range(tops))
            done.top_logprob.extend(-float(other) for other in range(tops))

    # --- moves ---

    def _on_move_over(self, number: int) -> list[Effect]:
        move = self._moves.get(number)
        if move is None:
            return []  # cancelled
        self.safepoints += 1
        assert self._is_mapped, "no host tier is mapped"
        host = move.host
        assert host is not None
        assert move.region.layer_stop - move.region.layer_start == len(self.ready.layers)
        slots = _slots(move.extent_start, move.extent_length)
        tokens = move.region.stop - move.region.start
        assert len(slots) == tokens, f"move {number}: {len(slots)} slots for {tokens} tokens"
        assert tokens * self.ready.kv_bytes_per_token <= host.length_bytes, f"move {number} does not fit its region"
        copy = self._copy_out if move.kind is MoveKind.SLAB_TO_HOST else self._copy_in
        return self._end_move(number, *copy(move, host, slots))

    def _copy_out(self, move: Move, host: HostRegion, slots: list[int]) -> tuple[MoveStatus, int]:
        content = [digest for slot in slots if (digest := self.slab[slot]) is not None]
        assert len(content) == len(slots), f"move {move.move} copies slots that nobody wrote"
        self._tier.write(host, content)
        return MoveStatus.OK, self._checksum(move, content)

    def _copy_in(self, move: Move, host: HostRegion, slots: list[int]) -> tuple[MoveStatus, int]:
        content = self._tier.read(host)
        for slot, digest in zip(slots, content, strict=False):
            self.slab[slot] = digest
            self.tenants[slot] = None  # the tier knows requests by their keys
        checksum = self._checksum(move, content)
        if checksum != host.checksum:
            return MoveStatus.CORRUPT, checksum
        if move.sequence == 0:
            return MoveStatus.OK, checksum
        sequence = self._sequences.get(move.sequence)
        if sequence is None or move.region.start > len(sequence.slots):
            return MoveStatus.FAILED, checksum
        sequence.slots[move.region.start :] = slots
        return MoveStatus.OK, checksum

    def _checksum(self, move: Move, content: list[int]) -> int:
        return digest_of([*identity(move.region, self.ready.kv_dtype, move.chain), *content])

    def _end_move(self, number: int, status: MoveStatus, checksum: int = 0) -> list[Effect]:
        if self._moves.pop(number, None) is None:
            return []
        done = MoveDone(number, status, checksum, busy_s=self.move_busy_s)
        return [Send(self._instance, done), *self._begin()]


def make_ready(**overrides: Any) -> EngineReady:
    """What the fake engine says of itself."""
    values = {
        "layers": i32([0, 1]),
        "slots": 256,
        "quantum": 16,
        "weights_digest": "fake",
        "kv_dtype": "float32",
        "kv_bytes_per_token": 64,
        "max_positions": 4096,
        "vocabulary": VOCABULARY,
    }
    return EngineReady(**{**values, **overrides})


def _slots(starts: Iterable[int], lengths: Iterable[int]) -> list[int]:
    return [slot for start, length in zip(starts, lengths, strict=True) for slot in range(start, start + length)]


def _spans(step: Step) -> list[list[int]]:
    """The slots of each row, in order of position."""
    spans: list[list[int]] = [[] for _ in step.sequence]
    for row, start, length in zip(step.extent_row, step.extent_start, step.extent_length, strict=True):
        spans[row].extend(range(start, start + length))
    return spans


class EngineSeat:
    """What an instance's server does around its engine: starts it, kills it on `StopEngine`, starts the next.

    Sits at the engine's address in a link and passes everything on to the engine that runs there now. `engine` is the
    newest; `ended` holds those before it.
    """

    def __init__(self, world: World, instance: Address, tier: HostTier | None = None, **settings: Any) -> None:
        self.restart_s: float = settings.pop("restart_s", 1.0)
        self.ended: list[EngineModel] = []
        self.is_trusted = True
        self._world = world
        self._instance = instance
        self._tier = tier
        self._settings = settings
        self.engine = self._start()

    def crash(self, signal: int = 9, code: int = 0, ended_by_us: bool = False, returns: bool = True) -> None:
        """The engine process ends by a signal or a code; another is started `restart_s` later, if one `returns`."""
        self._world.kill(self.engine.address)
        self.is_trusted = signal not in WILD
        exited = EngineExited(code, signal, ended_by_us, self.restart_s)
        self._world.post(self.engine.address, self._instance, exited, 0.0)
        self.ended.append(self.engine)
        self._world.add(self.engine.address, _Restart(self))
        if returns:
            self._world.post(self.engine.address, self.engine.address, Tick(), self.restart_s)

    def restart(self) -> None:
        """The next engine process runs."""
        before = self.engine
        self.engine = self._start()
        self.engine.take_over(before, self.is_trusted)

    def _start(self) -> EngineModel:
        engine = EngineModel(self._instance, self._tier, **self._settings)
        self._world.add(engine.address, _Watched(self, engine))
        self._world.join(self._instance, engine.address)
        return engine


@dataclass(slots=True)
class _Watched:
    """Looks at what goes to the engine: `StopEngine` is for its host."""

    seat: EngineSeat
    engine: EngineModel

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, StopEngine):
            self.seat.crash(ended_by_us=True)
            return []
        return self.engine.receive(now_s, sender, message)


@dataclass(slots=True)
class _Restart:
    """Nobody runs here now."""

    seat: EngineSeat

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Tick):
            self.seat.restart()
        return []
