"""Writers come, write, claim, fall silent, wake and die in any order: no process gets room that another may write."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from dunlin.messages.pool import (
    CommitRegion,
    FindRegions,
    PendingWrites,
    RegionReserved,
    RegionsFound,
    RegionsRevoked,
    ReleaseRegion,
    ReserveRegion,
)
from dunlin.messages.types import HostRegion, Region, i64
from services.kvstore.config import KvstoreConfig, TierConfig
from services.kvstore.core import KvstoreCore
from services.kvstore.regions.catalog import RegionState
from services.kvstore.regions.writer_absences import PROCESSES, AwaitProcessEnd, ProcessEnded

ME = Address("kvstore", "kv", 1)
ETCD = Address("etcd", "")
UNIT = 64
NAMES = st.sampled_from(["a", "b"])
SIZES = st.integers(1, 4 * UNIT)
CHOICE = st.integers(0, 20)


class Process:
    """One instance process: alive until killed, with the regions that it may still write, and those it may read."""

    def __init__(self, address: Address, pid: int) -> None:
        self.address = address
        self.pid = pid
        self.joined = False
        self.registered = True
        self.writes: list[HostRegion] = []
        self.keeps: list[HostRegion] = []


class KvstoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        config = KvstoreConfig("/proc/1/fd/3", "n", tier=TierConfig(12 * UNIT, UNIT, 9))
        self.core = KvstoreCore(ME, config)
        self.now_s = 0.0
        self.incarnations = 10
        self.living: dict[str, Process] = {}
        self.watched: list[AwaitProcessEnd] = []
        self.timers: list[Message] = []
        self.dead: list[tuple[Address, HostRegion]] = []
        self.forgotten: dict[str, HostRegion] = {}
        self.unheard: list[Process] = []

    def give(self, sender: Address, message: Message) -> list[Effect]:
        self.now_s += 0.125
        effects = list(self.core.receive(self.now_s, sender, message))
        for effect in effects:
            if isinstance(effect, After):
                self.timers.append(effect.message)
            elif effect.to == PROCESSES and isinstance(effect.message, AwaitProcessEnd):
                self.watched.append(effect.message)
        return effects

    @initialize()
    def begin(self) -> None:
        """Both are there: most examples would else be of processes that never come."""
        for name in ("a", "b"):
            self.start(name)
            self.join(name)

    @rule(name=NAMES)
    def start(self, name: str) -> None:
        if name in self.living:
            return
        self.incarnations += 1
        process = Process(Address("instance", name, self.incarnations), 1000 + self.incarnations)
        self.living[name] = process
        self.give(ETCD, MemberUp(Member(process.address, "127.0.0.1:1", "n", process.pid)))

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        process = self.living.get(name)
        if process is not None and not process.joined:
            process.joined = True
            self.give(process.address, Joined())
            self.unheard = [one for one in self.unheard if one.address.name != name]  # a successor is proof
            handles, generations = [one.handle for one in process.writes], [one.generation for one in process.writes]
            self.give(process.address, PendingWrites(i64(handles), i64(generations)))
            self.forgotten.pop(name, None)

    @precondition(lambda self: any(one.joined for one in self.living.values()))
    @rule(name=NAMES)
    def lose_the_stream(self, name: str) -> None:
        process = self.living.get(name)
        if process is not None and process.joined:
            process.joined = False
            process.keeps.clear()  # given up with the stream
            self.give(process.address, Gone("reset"))

    @rule(name=NAMES)
    def lose_the_lease(self, name: str) -> None:
        process = self.living.get(name)
        if process is not None and process.registered:
            process.registered = False
            self.give(ETCD, MemberDown(process.address))

    @rule()
    def regain_history(self) -> None:
        for process in self.living.values():
            process.registered = True
        members = [Member(one.address, "127.0.0.1:1", "n", one.pid) for one in self.living.values()]
        self.give(ETCD, MembersReset(tuple(members)))

    @precondition(lambda self: any(one.joined for one in self.living.values()))
    @rule(name=NAMES, size=SIZES)
    def reserve(self, name: str, size: int) -> None:
        process = self.living.get(name)
        if process is None or not process.joined:
            return
        reservation = ReserveRegion(1, Address("dispatcher", "d", 1), 1, 1, Region(0, 1, 0, 1), size, "fp32", "w")
        reservation = replace(reservation, key=f"k{size % 2}", chain=size.to_bytes(2, "little"))
        (effect,) = self.give(process.address, reservation)
        assert isinstance(effect, Send)
        if isinstance(effect.message, RegionReserved):
            process.writes.append(effect.message.host)

    @precondition(lambda self: any(one.joined and one.writes for one in self.living.values()))
    @rule(name=NAMES, choice=CHOICE)
    def lose_a_word(self, name: str, choice: int) -> None:
        """Its copy is complete, and the commit is lost with the stream: it is unknown until the writer is back."""
        process = self.living.get(name)
        if process is not None and process.joined and process.writes:
            self.forgotten[name] = process.writes.pop(choice % len(process.writes))
            self.lose_the_stream(name)

    @invariant()
    def no_room_waits_for_who_has_said_what_it_writes(self) -> None:
        for name, process in self.living.items():
            if process.joined and name not in self.forgotten:
                entries = self.core.catalog.entries_of(process.address)
                waiting = [entry.host.handle for entry in entries if entry.state is not RegionState.COMMITTED]
                assert sorted(waiting) == sorted(host.handle for host in process.writes)

    @precondition(lambda self: any(one.joined and one.writes for one in self.living.values()))
    @rule(name=NAMES, choice=CHOICE)
    def commit(self, name: str, choice: int) -> None:
        process = self.living.get(name)
        if process is not None and process.joined and process.writes:
            host = process.writes.pop(choice % len(process.writes))
            stale = self.core.stale_total
            self.give(process.address, CommitRegion(host.handle, host.generation, 5))
            assert self.core.stale_total == stale
            process.keeps.append(host)

    @precondition(lambda self: any(one.joined for one in self.living.values()))
    @rule(name=NAMES, key=st.sampled_from(["k0", "k1"]))
    def claim(self, name: str, key: str) -> None:
        """The claimer has the regions, and no other process has them any more."""
        process = self.living.get(name)
        if process is None or not process.joined:
            return
        wanted = FindRegions(1, key, Address("dispatcher", "d", 1), 1, 1, "w", "fp32")
        *notices, effect = self.give(process.address, wanted)
        assert isinstance(effect, Send)
        assert isinstance(effect.message, RegionsFound)
        found = [kept.host for kept in effect.message.regions]
        handles = [host.handle for host in found]
        words = [(one.to, one.message) for one in notices if isinstance(one, Send)]
        taken = [(to, word) for to, word in words if isinstance(word, RegionsRevoked)]
        names = [(to, *name) for to, each in taken for name in zip(each.handle, each.generation, strict=True)]
        there = [other for other in self.living.values() if other.joined] + self.unheard
        kept = [(other.address, host.handle, host.generation) for other in there for host in other.keeps]
        assert sorted(names) == sorted(name for name in kept if name[1] in handles)
        for other in there:
            self.dead += [(other.address, host) for host in other.keeps if host.handle in handles]
            other.keeps = [host for host in other.keeps if host.handle not in handles]
        process.keeps += found

    @precondition(lambda self: self.dead)
    @rule(choice=CHOICE)
    def use_a_dead_name(self, choice: int) -> None:
        owner, host = self.dead.pop(choice % len(self.dead))
        before, stale = len(self.core.catalog), self.core.stale_total
        self.give(owner, ReleaseRegion(host.handle, host.generation))
        self.give(owner, CommitRegion(host.handle, host.generation, 6))
        assert (len(self.core.catalog), self.core.stale_total) == (before, stale + 2)

    @precondition(lambda self: any(one.joined and one.keeps for one in self.living.values()))
    @rule(name=NAMES, choice=CHOICE)
    def release(self, name: str, choice: int) -> None:
        process = self.living.get(name)
        if process is not None and process.joined and process.keeps:
            host = process.keeps.pop(choice % len(process.keeps))
            self.give(process.address, ReleaseRegion(host.handle, host.generation))

    @rule(name=NAMES, told=st.booleans(), heard=st.booleans())
    def kill(self, name: str, told: bool, heard: bool = True) -> None:
        """The process dies; the kvstore may first hear it from its watcher, the stream, or a successor that joins."""
        process = self.living.pop(name, None)
        self.forgotten.pop(name, None)
        if process is None:
            return
        if process.joined and heard:
            self.give(process.address, Gone("reset"))
        elif process.joined:
            self.unheard.append(process)
        if told:
            self.tell_ends(process)

    @precondition(lambda self: self.unheard)
    @rule()
    def hear_that_streams_ended(self) -> None:
        unheard, self.unheard = self.unheard, []
        for process in unheard:
            self.give(process.address, Gone("timeout"))

    @precondition(lambda self: self.timers)
    @rule(choice=CHOICE)
    def let_a_timer_fire(self, choice: int) -> None:
        self.give(ME, self.timers.pop(choice % len(self.timers)))

    @rule()
    def tell_who_ended(self) -> None:
        living = [process.pid for process in self.living.values()]
        for wanted in [wanted for wanted in self.watched if wanted.pid not in living]:
            self.watched.remove(wanted)
            self.give(PROCESSES, ProcessEnded(wanted.writer))

    def tell_ends(self, process: Process) -> None:
        for wanted in [wanted for wanted in self.watched if wanted.pid == process.pid]:
            self.watched.remove(wanted)
            self.give(PROCESSES, ProcessEnded(wanted.writer))

    @invariant()
    def the_books_agree(self) -> None:
        self.core.catalog.check_integrity()

    @invariant()
    def whoever_lives_may_write_where_it_was_told(self) -> None:
        """The room that a living process may write is its own, whatever was heard of streams and leases."""
        for process in self.living.values():
            for host in process.writes:
                entry = self.core.catalog.find(process.address, host.handle, host.generation)
                assert entry is not None
                assert entry.host.offset_bytes == host.offset_bytes

    @invariant()
    def what_a_joined_process_keeps_is_there(self) -> None:
        for process in self.living.values():
            for host in process.keeps:
                if process.joined:
                    assert self.core.catalog.find(process.address, host.handle, host.generation) is not None

    def teardown(self) -> None:
        """When all writers are dead and the watcher has reported, nothing is left."""
        for name in list(self.living):
            self.kill(name, told=True)
        self.hear_that_streams_ended()
        self.tell_who_ended()
        self.give(ETCD, MembersReset(()))
        for timer in self.timers:
            self.give(ME, timer)
        assert self.core.catalog.allocator.free_bytes == self.core.catalog.allocator.capacity_bytes


TestKvstoreMachine = KvstoreMachine.TestCase
TestKvstoreMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
