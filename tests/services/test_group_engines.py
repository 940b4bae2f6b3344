"""A prompt longer than any instance, computed by a group of them: real cores, real engines, a scripted leader."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address, Effect, Gone, Joined, Message, Send
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import kv_file_runs, slab_of
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.group import (
    CancelGroupSteps,
    CloseGuest,
    GroupStep,
    GroupStepDone,
    GuestClosed,
    GuestSlots,
    JoinGroup,
    MeetMembers,
    MemberEngine,
    MemberReady,
    MembersMet,
    OpenGuest,
)
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupKind, GroupRole, SamplingParams, i32, i64
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore
from simulator.cluster.world import World
from tests.engine.build import SteppingClock, make_checkpoint
from tests.engine.commands import make_open
from tests.engine.execution.members import Member, whole_text
from tests.services.engine_cluster import LIMITS, EngineMemory, RealEngine
from tests.services.instance.bench import Silent, make_place
from tests.services.instance.group.member_bench import GROUP, GUEST, group_step
from tests.settings import configured

LEADER = Address("instance", "leader", 1)
MANAGER = Address("global_manager", "m", 2)
DISPATCHER = Address("dispatcher", "d", 3)
SLOTS_EACH = 100
TEXT = [(7 * at * at + 3 * at + 11) % 500 for at in range(250)]
CHUNKS = ((0, 90), (90, 170), (170, 250))
DECODES = 8
SAMPLING = SamplingParams(temperature=0.0)
Block = tuple[int, int, int]
"""(first token, last, member)."""


@dataclass
class ScriptedLeader:
    """Computes the text as blocks of its members in turn, two steps under way, then decodes at the last one's.

    `cancels`: the exchange that it cancels once, and asks for again. `by_ring`: the first chunk goes round as stripes.
    `adapter`: the text's.
    """

    members: Sequence[Address]
    cancels: int = 0
    by_ring: bool = False
    adapter: str = ""
    tokens: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    ready: dict[Address, MemberReady] = field(default_factory=dict)
    is_over: bool = False
    cancelled: int = 0
    refusals: list[str] = field(default_factory=list)
    _waits_for: set[Address] = field(default_factory=set)
    _unanswered: dict[int, set[int]] = field(default_factory=dict)
    _sent: dict[int, list[Block]] = field(default_factory=dict)
    _failed: list[int] = field(default_factory=list)
    _exchanges: int = 0

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Joined):
            return self._to(sender, JoinGroup(1, 1, GROUP, self._index(sender))) if sender in self.members else []
        if isinstance(message, MemberReady):
            is_new = sender not in self.ready
            self.ready[sender] = message
            return self._once_all(sender, self._meet) if is_new else []
        if isinstance(message, MembersMet):
            assert len(message.met) == len(self.members) - 1, message.detail
            return self._once_all(sender, self._open)
        if isinstance(message, GuestSlots):
            return self._once_all(sender, self._go_on)
        if isinstance(message, GroupStepDone):
            return self._on_done(self._index(sender), message)
        if isinstance(message, GuestClosed):
            return self._once_all(sender, self._end)
        assert isinstance(message, Gone), message
        return []

    # --- the conversation ---

    def _once_all(self, sender: Address, then: Any) -> list[Effect]:
        self._waits_for = self._waits_for or set(self.members)
        self._waits_for.discard(sender)
        return then() if not self._waits_for else []

    def _meet(self) -> list[Effect]:
        engines = [MemberEngine(self._index(each), said.engine, said.agent) for each, said in self.ready.items()]
        return self._to_all(
            lambda me: MeetMembers(GROUP, tuple(each for each in engines if each.member != self._index(me)))
        )

    def _open(self) -> list[Effect]:
        opened = OpenGuest(
            GROUP, GUEST, DISPATCHER, 1, 1, "long", i32(TEXT), len(TEXT), DECODES + 1, SLOTS_EACH, SAMPLING
        )
        opened = replace(opened, adapter=self.adapter)
        return self._to_all(lambda me: opened)

    def _end(self) -> list[Effect]:
        self.is_over = True
        return []

    # --- steps ---

    def _go_on(self) -> list[Effect]:
        """The next steps, as many as may be under way."""
        effects: list[Effect] = []
        while len(self._unanswered) < 2 and not self._failed:
            blocks = self._next()
            if not blocks:
                break
            effects += self._step(blocks)
        if len(self.tokens) == DECODES and not self._unanswered and not self._failed:
            return self._to_all(lambda me: CloseGuest(GROUP, GUEST))
        return effects

    def _next(self) -> list[Block]:
        at = self.blocks[-1][1] if self.blocks else 0
        count = len(self.members)
        for number, (start, stop) in enumerate(CHUNKS):
            if start == at:
                each = (stop - start) // count
                cuts = [*(start + each * turn for turn in range(count)), stop]
                return [(cuts[turn], cuts[turn + 1], 1 + (number + turn) % count) for turn in range(count)]
        known = len(TEXT) + len(self.tokens)
        if self._unanswered or at >= known or len(self.tokens) == DECODES:
            return []
        return [(at, at + 1, self.blocks[-1][2])]

    def _step(self, blocks: list[Block]) -> list[Effect]:
        self._exchanges += 1
        before, self.blocks = list(self.blocks), [*self.blocks, *blocks]
        effects: list[Effect] = []
        if self.by_ring and not before:
            return effects + [Send(address, self._ring(index, blocks)) for index, address in enumerate(self.members, 1)]
        for index, address in enumerate(self.members, 1):
            own = [block for block in blocks if block[2] == index]
            rows = [(GUEST, start, stop) for start, stop, _ in own]
            spans = [
                (row, a, b, at)
                for row, (start, _, _) in enumerate(own)
                for a, b, at in [*before, *blocks]
                if at != index and b <= start
            ]
            parts: list[Any] = []
            for start, stop, master in blocks:
                held = [(a, b) for a, b, at in [*before, *blocks] if at == index and b <= start]
                if master != index and held:
                    parts.append((GUEST, start, stop, master, held))
            if rows or parts:
                step = group_step(self._exchanges, rows, spans, parts)
                for row, (_, stop, _) in enumerate(own):
                    step.sample[row] = stop >= len(TEXT)
                self._unanswered.setdefault(self._exchanges, set()).add(index)
                effects += self._to(address, step)
        self._sent[self._exchanges] = blocks
        if self._exchanges == self.cancels:
            effects += self._to_all(lambda me: CancelGroupSteps(GROUP, self.cancels))
        return effects

    def _ring(self, me: int, blocks: list[Block]) -> GroupStep:
        """The chunk's stripes, of which each member keeps its block."""
        self._sent[self._exchanges] = blocks
        self._unanswered.setdefault(self._exchanges, set()).add(me)
        count, stop = len(self.members), blocks[-1][1]
        spans = [(0, index - 1, stop, index) for index in range(1, count + 1) if index != me]
        ((first, last),) = [(a, b) for a, b, at in blocks if at == me]
        columns: dict[str, Any] = {
            "keep_row": i32([0]),
            "keep_start": i64([first]),
            "keep_stop": i64([last]),
            "stride": i64([count]),
            "span_stride": i64([count] * len(spans)),
        }
        return group_step(self._exchanges, [(GUEST, me - 1, stop)], spans, kind=GroupKind.RING, **columns)

    def _on_done(self, member: int, message: GroupStepDone) -> list[Effect]:
        self._unanswered[message.exchange].remove(member)
        if message.refusal:
            self.refusals.append(message.refusal)
        effects: list[Effect] = []
        if message.done is None or message.done.left:  # this step and all after it are computed anew
            if not self._failed:
                effects = self._to_all(lambda me: CancelGroupSteps(GROUP, self._exchanges))
            self._failed.append(message.exchange)
            self.cancelled += 1
        else:
            self.tokens += message.done.token
        if not self._unanswered[message.exchange]:
            del self._unanswered[message.exchange]
        if self._failed and not self._unanswered:
            first = self._sent[min(self._failed)][0][0]
            self.blocks = [block for block in self.blocks if block[1] <= first]
            self._failed.clear()
        return effects + self._go_on()

    def _index(self, address: Address) -> int:
        return self.members.index(address) + 1

    def _to(self, address: Address, message: Message) -> list[Effect]:
        return [Send(address, message)]

    def _to_all(self, make: Any) -> list[Effect]:
        return [Send(each, make(each)) for each in self.members]


class Group:
    """Instances that are members of the scripted leader's group, each with a real engine."""

    def __init__(self, memories: Sequence[EngineMemory], **leader: Any) -> None:
        self.world = World(0.0005)
        addresses = [Address("instance", f"i{number}", 10 + number) for number in range(len(memories))]
        self.leader = ScriptedLeader(addresses, **leader)
        self.dispatcher = Silent()
        self.world.add(LEADER, self.leader)
        self.world.add(MANAGER, Silent())
        self.world.add(DISPATCHER, self.dispatcher)
        self.cores: list[InstanceCore] = []
        self.engines: list[RealEngine] = []
        for address, memory in zip(addresses, memories, strict=True):
            self._add(address, memory)
        for address in addresses:
            order = GroupOrder(1, 1, GROUP, GroupKind.ELASTIC, GroupRole.MEMBER, (LEADER, *addresses))
            self.world.connect(MANAGER, address)
            self.world.connect(DISPATCHER, address)
            self.world.post(MANAGER, address, order)
            self.world.connect(LEADER, address)

    def _add(self, address: Address, memory: EngineMemory) -> None:
        memory.forget_kv()
        config = configured(InstanceConfig, role="instance", kv_cache__max_slots=SLOTS_EACH)
        core = InstanceCore(address, config)
        rooms, page = TransitRooms(8, 1 << 16), os.memfd_create("page")
        own = OwnMemory(slab_of(memory.model.arena, memory.model.decoder.kv), rooms)
        access = PeerAccess(page, rooms)
        access.publish(memory.arena_fd, own.slab, kv_file_runs(memory.model.arena))
        own = replace(own, access=access)
        runner = EngineRunner(memory.model.decoder, memory.model.slots, SteppingClock(), LIMITS, memory=own)
        engine = RealEngine(address, memory, Path("/nowhere"), runner, access.agent, PeerRoomTable(page))
        self.cores.append(core)
        self.engines.append(engine)
        self.world.add(address, core)
        self.world.add(core.engine, engine)
        self.world.connect(address, core.engine)

    def run(self) -> None:
        assert self.world.run(lambda: self.leader.is_over, for_s=12.0), (self.leader, self.cores)
        self.world.run(for_s=1.0)
        for core in self.cores:
            assert core.lifecycle.kv_cache.available_slots == SLOTS_EACH, core
            assert core.steps.outstanding == 0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=3, layers=2)


@pytest.fixture(scope="module")
def memories(checkpoint: Path) -> Iterator[list[EngineMemory]]:
    loaded = [EngineMemory.load(checkpoint) for _ in range(3)]
    yield loaded
    for each in loaded:
        each.model.arena.close()


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[int]:
    """What one big engine says."""
    alone = Member(9, checkpoint, "deterministic")
    tokens = [token for token, _ in whole_text(alone, TEXT, DECODES, 0)]
    alone.close()
    return tokens


def test_a_prompt_longer_than_a_slab_has_the_tokens_of_one_big_engine(
    memories: list[EngineMemory], expected: list[int]
) -> None:
    group = Group(memories)
    group.world.post(DISPATCHER, group.cores[1].address, make_place(5, 10), 0.5)  # and one of its own
    group.run()
    assert group.leader.tokens == expected
    assert group.leader.refusals == []


def test_a_first_chunk_that_goes_round_leaves_blocks_to_go_on_from(
    memories: list[EngineMemory], expected: list[int]
) -> None:
    group = Group(memories, by_ring=True)
    group.run()
    assert group.leader.tokens == expected


@pytest.mark.parametrize("exchange", [1, 2])
def test_cancelled_steps_are_computed_anew(memories: list[EngineMemory], expected: list[int], exchange: int) -> None:
    group = Group(memories, cancels=exchange)
    group.run()
    assert group.leader.cancelled
    assert group.leader.tokens == expected


def test_more_tokens_may_lie_elsewhere_than_an_engine_has_slots(memories: list[EngineMemory]) -> None:
    model = memories[0].model
    runner = EngineRunner(model.decoder, model.slots, SteppingClock(), LIMITS)
    tokens = [at % 500 for at in range(model.slots + 100)]
    extents = {"extent_start": i64([-1, 3]), "extent_length": i64([model.slots + 50, 10])}
    assert runner.receive(make_open(1, tokens, **extents)) == []
    assert [
        refused.detail
        for refused in runner.receive(make_open(2, tokens, extent_start=i64([0]), extent_length=i64([model.slots + 1])))
    ] == [f"an extent of {model.slots + 1} slots from 0 in a slab of {model.slots}"]
