"""A member that answers a leader as the contract says, in virtual time: no engine and no real member.

Members are strict: a step that contradicts what they have, or what its other members are told, fails the test.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dunlin.effects import Address, Message
from dunlin.messages.engine import StepDone
from dunlin.messages.group import (
    CancelGroupSteps,
    CloseGuest,
    GroupStep,
    GroupStepDone,
    GrowGuest,
    GuestClosed,
    GuestReassigned,
    GuestRefused,
    GuestsLost,
    GuestSlots,
    JoinGroup,
    MeetMembers,
    MemberReady,
    MembersMet,
    OpenGuest,
)
from dunlin.messages.types import FinishReason, f32, i8, i32, i64
from simulator.engine.token_model import digest_of, token_after
from tests.services.instance.bench import ME
from tests.services.instance.group.leading.step_checks import (
    asked_spans,
    covered_by,
    kept_of,
)

if TYPE_CHECKING:
    from tests.services.instance.group.leading.scripted_group import ScriptedGroup

GROUP = 7


@dataclass
class Guest:
    """A sequence at a member: its text as the engine knows it, and the digest of the text before each KV here.

    The engine has forgotten where KV `forgotten` lies, for it wrote before that since it was told.
    """

    opened: OpenGuest
    slots: int
    text: list[int]
    kv: dict[int, int] = field(default_factory=dict)
    is_over: bool = False
    forgotten: set[int] = field(default_factory=set)

    def begin(self, positions: range) -> None:
        """A row writes these: what lies after them is void, but for what the leader said lies here."""
        kept = range(positions.stop, max(self.opened.held_stop, default=0))
        self.forgotten = {position for position in self.kv if position in kept}
        self.kv = {at: kv for at, kv in self.kv.items() if at < positions.start or at in kept}


def empty_columns() -> dict[str, list[Any]]:
    """Of an answer, by name."""
    tops = ("top_count", "top_token", "top_logprob")
    return {name: [] for name in ("sequence", "token", "logprob", "finish", "left", "dropped", "failed", *tops)}


class ScriptedMember:
    """One member. It refuses `refuses_steps` steps, and rows of the sequences in `leaves` leave their next one; those
    in `fails` have no next token.

    `kept`: by a request's key, the starts and stops of what lies here of an attempt whose leader is gone.
    """

    def __init__(self, group: "ScriptedGroup", address: Address, slots: int) -> None:
        self.group = group
        self.address = address
        self.capacity = slots
        self.taken = 0
        self.index = -1
        self.engine = 1
        self.guests: dict[int, Guest] = {}
        self.queue: list[GroupStep] = []
        self.told: dict[int, bytes] = {}
        self.unreachable: set[int] = set()
        self.refuses_steps = 0
        self.leaves: set[int] = set()
        self.fails: set[int] = set()
        self.max_positions = 1000
        self.kept: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.is_silent = False
        self.is_stopped = False
        self.waiting: list[Message] = []
        self.last_exchange = 0
        self.heard: list[Message] = []

    @property
    def free(self) -> int:
        return self.capacity - self.taken - sum(guest.slots for guest in self.guests.values())

    @property
    def agent(self) -> bytes:
        return f"{self.address.name}:{self.engine}".encode()

    def say(self, message: Message) -> None:
        self.group.send(self.address, ME, message)

    def stop(self) -> None:
        """SIGSTOP: what it is told waits."""
        self.is_stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.is_stopped, waiting, self.waiting = False, self.waiting, []
        for message in waiting:
            self.take(message)
        self.group.start_steps()

    def take(self, message: Message) -> None:
        if self.is_stopped:
            self.waiting.append(message)
            return
        self.heard.append(message)
        if not self.is_silent:
            getattr(self, f"on_{type(message).__name__}")(message)

    def on_JoinGroup(self, message: JoinGroup) -> None:
        self.index = message.member
        self.say_ready()

    def say_ready(self) -> None:
        engine = Address("engine", self.address.name)
        self.say(MemberReady(GROUP, engine, self.agent, 0, self.capacity, self.free, self.max_positions, "w", "fp32"))

    def on_MeetMembers(self, message: MeetMembers) -> None:
        assert self.index not in [each.member for each in message.engines]
        met = [each.member for each in message.engines if each.member not in self.unreachable]
        self.told = {each.member: each.agent for each in message.engines if each.member in met}
        self.say(MembersMet(GROUP, i32(met), "" if len(met) == len(message.engines) else "no way", message.question))

    def on_OpenGuest(self, message: OpenGuest) -> None:
        guest = self.guests.get(message.sequence)
        more = message.slots - (guest.slots if guest is not None else 0)
        assert more >= 0
        if more > self.free:
            self.say(GuestRefused(GROUP, message.sequence, self.free))
            return
        if guest is None:
            assert message.slots > 0
            guest = self.guests[message.sequence] = Guest(message, message.slots, [])
        assert not self.steps_with(message.sequence), "opened anew while steps name it"
        guest.slots, guest.opened, guest.text = message.slots, message, list(message.tokens)
        held = [range(*span) for span in zip(message.held_start, message.held_stop, strict=True)]
        guest.kv = {position: kv for position, kv in guest.kv.items() if any(position in span for span in held)}
        guest.forgotten.clear()
        starts, stops = self.kept.pop(message.key, ((), ()))
        guest.kv |= {
            at: digest_of(guest.text[: at + 1]) for span in zip(starts, stops, strict=True) for at in range(*span)
        }
        guest.slots = max(guest.slots, len(guest.kv))
        self.say(GuestSlots(GROUP, message.sequence, guest.slots, self.free, i64(starts), i64(stops)))

    def on_GrowGuest(self, message: GrowGuest) -> None:
        guest = self.guests.get(message.sequence)
        if guest is None:  # lost before this came
            self.say(GuestRefused(GROUP, message.sequence, self.free))
            return
        assert message.slots > guest.slots
        if message.slots - guest.slots > self.free:
            self.say(GuestRefused(GROUP, message.sequence, self.free))
            return
        guest.slots = message.slots
        self.say(GuestSlots(GROUP, message.sequence, guest.slots, self.free))

    def on_GuestReassigned(self, message: GuestReassigned) -> None:
        guest = self.guests.get(message.sequence)
        if guest is None:  # refused before this came
            return
        guest.opened = replace(
            guest.opened, dispatcher=message.dispatcher, request=message.request, attempt=message.attempt
        )

    def on_CloseGuest(self, message: CloseGuest) -> None:
        self.guests.pop(message.sequence, None)
        self.say(GuestClosed(GROUP, message.sequence, self.free))

    def on_GroupStep(self, message: GroupStep) -> None:
        assert message.exchange > self.last_exchange
        self.last_exchange = message.exchange
        assert len(message.sequence) + len(message.serve_sequence) > 0
        if self.refuses_steps:
            self.refuses_steps -= 1
            self.say(GroupStepDone(GROUP, message.exchange, None, "not today"))
            return
        self.queue.append(message)
        self.group.start_steps()

    def on_CancelGroupSteps(self, message: CancelGroupSteps) -> None:
        for step in [step for step in self.queue if step.exchange <= message.exchange]:
            self.queue.remove(step)
            self.answer(step, {**empty_columns(), "left": list(step.sequence)})
        self.group.start_steps()

    def steps_with(self, sequence: int) -> list[GroupStep]:
        return [step for step in self.queue if sequence in step.sequence]

    def lose_engine(self) -> None:
        self.guests.clear()
        self.queue.clear()
        self.engine += 1
        self.say(GuestsLost(GROUP))
        self.say_ready()

    def answer(self, step: GroupStep, columns: dict[str, list[Any]]) -> None:
        kinds = {"logprob": f32, "top_logprob": f32, "finish": i8, "token": i32, "top_count": i32, "top_token": i32}
        filled: dict[str, Any] = {name: kinds.get(name, i64)(values) for name, values in columns.items()}
        self.say(GroupStepDone(GROUP, step.exchange, StepDone(step.exchange, **filled)))

    def compute(self, step: GroupStep, row: int, columns: dict[str, list[Any]]) -> None:
        """Write the KV of a row, and choose its token. What the member serves was checked by the masters."""
        number, start, stop = step.sequence[row], step.start[row], step.stop[row]
        guest = self.guests.get(number)
        if guest is None or guest.is_over:
            columns["dropped"].append(number)
            return
        if number in self.leaves or not self.reads_all(step, row, guest, start):
            self.leaves.discard(number)
            columns["left"].append(number)
            return
        assert stop <= len(guest.text), f"{self.address.name} knows {len(guest.text)} tokens, not {stop}"
        guest.begin(range(start, stop))
        for position in range(start, stop):
            guest.kv[position] = digest_of(guest.text[: position + 1])
        assert len(guest.kv) <= guest.slots, f"{len(guest.kv)} tokens in {guest.slots} slots"
        if step.sample[row]:
            assert stop == len(guest.text)
            self.sample(guest, number, columns)

    def may_compute(self, step: GroupStep, row: int) -> bool:
        """Whether a ring's row runs, and reads what lies before the ring."""
        number = step.sequence[row]
        guest = self.guests.get(number)
        if guest is None or guest.is_over or number in self.leaves:
            return False
        return self.reads_all(step, row, guest, covered_by(step, row).start)

    def compute_stripe(self, step: GroupStep, row: int, columns: dict[str, list[Any]], is_whole: bool) -> None:
        """A ring's row: what is kept of all stripes lies here afterwards, if all members computed theirs."""
        number, guest, covered = step.sequence[row], self.guests.get(step.sequence[row]), covered_by(step, row)
        self.leaves.discard(number)
        if guest is None or guest.is_over or not is_whole:
            columns["dropped" if guest is None or guest.is_over else "left"].append(number)
            return
        stripe = range(step.start[row], step.stop[row], step.stride[row])
        assert covered.stop <= len(guest.text)
        guest.begin(covered)
        guest.kv |= {position: digest_of(guest.text[: position + 1]) for position in kept_of(step, row)}
        assert len(guest.kv) + len(stripe) <= guest.slots, f"{len(guest.kv)} and a stripe in {guest.slots} slots"
        if step.sample[row]:
            assert stripe[-1] + 1 == len(guest.text)
            self.sample(guest, number, columns)

    def sample(self, guest: Guest, number: int, columns: dict[str, list[Any]]) -> None:
        opened = guest.opened
        if number in self.fails:
            columns["failed"].append(number)
            return
        token = token_after(digest_of(guest.text), opened.sampling.seed)
        guest.text.append(token)
        is_last = len(guest.text) >= opened.prompt_tokens + opened.max_tokens
        finish = FinishReason.STOP if token in opened.stop_ids else FinishReason.LENGTH if is_last else 0
        guest.is_over = bool(finish)
        for name, value in (("sequence", number), ("token", token), ("logprob", -1.0), ("finish", int(finish))):
            columns[name].append(value)
        tops = opened.sampling.logprobs or 0
        columns["top_count"].append(tops)
        columns["top_token"] += range(opened.request * 1000, opened.request * 1000 + tops)
        columns["top_logprob"] += [-2.0] * tops

    def reads_all(self, step: GroupStep, row: int, guest: Guest, start: int) -> bool:
        """Whether the KV of all tokens before `start` is there, here or where the row's spans say."""
        number, where = step.sequence[row], {}
        for span_row, first, stop, member in asked_spans(step):
            assert member != self.index
            for position in range(first, stop) if span_row == row else ():
                assert position not in where
                where[position] = member
        for position in range(start):
            holder = self.group.at(where[position]) if position in where else self
            there = holder.guests.get(number)
            if there is None or position not in there.kv:
                return False
            assert holder is not self or position not in guest.forgotten, "the engine was not told where it lies"
            assert there.kv[position] == digest_of(guest.text[: position + 1]), "the KV of another text"
        return True
