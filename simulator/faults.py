"""The faults of a campaign, by name: what each does to a cluster, and how the cluster gets well again.

Every fault says at whom it struck, or nothing where it could not (the last of its kind, say). The plan's numbers choose
the victims among who is there; nothing else is left to chance.
"""

from functools import partial

from dunlin.effects import Address, Effect, Gone, Message, Send
from dunlin.messages.door import CancelById
from dunlin.messages.plan import DrainRequest, Shed
from dunlin.messages.pool import RegionReserved, ReleaseRegion, ReserveRegion, Tier
from dunlin.messages.types import HostRegion, Region
from simulator.cluster import Cluster
from simulator.coverage import phase_of
from simulator.driven import Silent
from simulator.network import Jitter
from simulator.plans import Fault
from simulator.readers import Reader, Readers

KEEPALIVE_S = 10.0
"""A stream whose other side is silent for so long is given up (dunlin/wire/channels.py)."""
LONGEST_PAUSE_S = 9.0
"""Shorter than the keepalive: a stream that stalls for longer breaks, which is `half_open`."""


class Faults:
    """Strikes a cluster. `lag_s`: what reaches a process takes so much longer. `is_poisoned`: engines crash of poison
    alone, for who runs alone in several crashes is blamed.
    """

    def __init__(self, cluster: Cluster, readers: Readers, jitter: Jitter, is_poisoned: bool) -> None:
        self.damaged: set[tuple[Address, int]] = set()
        self.crashes = 0
        self.last_s = 0.0
        self.asleep_s: dict[Address, float] = {}
        self._touched_s: dict[Address, float] = {}
        self.lag_s = jitter.lag_s
        self._cluster = cluster
        self._world = cluster.world
        self._readers = readers
        self._is_poisoned = is_poisoned
        self._tools = 0
        self._aim = ""

    def strike(self, fault: Fault) -> Address | None:
        """Do it; the victim, or None where it could not be done."""
        self._aim = fault.aim
        victim: Address | None = getattr(self, f"do_{fault.kind}")(fault)
        if victim is not None:
            self._touch(fault, victim)
            self.last_s = max(self.last_s, self._world.now_s + fault.lasts_s + KEEPALIVE_S)
        return victim

    def was_touched(self, *addresses: Address) -> bool:
        """Whether a fault keeps one of them from what it should do, or did until a moment ago."""
        return any(self._touched_s.get(address, -1.0) > self._world.now_s for address in addresses)

    def _touch(self, fault: Fault, *addresses: Address) -> None:
        until_s = self._world.now_s + fault.lasts_s + KEEPALIVE_S
        for address in addresses:
            self._touched_s[address] = max(until_s, self._touched_s.get(address, 0.0))

    # --- processes ---

    def do_kill_instance(self, fault: Fault) -> Address | None:
        """SIGKILL; another starts later."""
        return self._kill("instance", fault, least=2)

    def do_kill_dispatcher(self, fault: Fault) -> Address | None:
        """SIGKILL; clients go on elsewhere."""
        return self._kill("dispatcher", fault)

    def do_kill_kvstore(self, fault: Fault) -> Address | None:
        """SIGKILL: the node's host tier is gone."""
        return self._kill("kvstore", fault)

    def do_kill_monitor(self, fault: Fault) -> Address | None:
        """SIGKILL: the last view ages."""
        return self._kill("monitor", fault)

    def do_kill_manager(self, fault: Fault) -> Address | None:
        """SIGKILL, of the leader or of another candidate."""
        return self._kill("global_manager", fault)

    def do_pause_instance(self, fault: Fault) -> Address | None:
        """SIGSTOP; its engine goes on."""
        return self._pause("instance", fault)

    def do_pause_dispatcher(self, fault: Fault) -> Address | None:
        """SIGSTOP."""
        return self._pause("dispatcher", fault)

    def do_pause_kvstore(self, fault: Fault) -> Address | None:
        """SIGSTOP."""
        return self._pause("kvstore", fault)

    def do_pause_monitor(self, fault: Fault) -> Address | None:
        """SIGSTOP."""
        return self._pause("monitor", fault)

    def do_pause_manager(self, fault: Fault) -> Address | None:
        """SIGSTOP, long enough for a lease to run out or not."""
        return self._pause("global_manager", fault)

    def do_outlive(self, fault: Fault) -> Address | None:
        """A process sleeps, is given up for dead and replaced; it wakes up beside its successor, and ends later."""
        roles = ("monitor", "global_manager", "kvstore", "dispatcher")
        victim = self._one(roles[int(fault.other * len(roles))], fault.pick)
        if victim is None or self._world.is_paused(victim) or self._cluster.etcd.is_down:
            return None
        self._cluster.pause(victim)
        self._world.later(min(0.3, fault.lasts_s), lambda: self._replace(victim))
        self._world.later(0.5 + fault.lasts_s, lambda: self._world.resume(victim))
        self._world.later(2.0 + fault.lasts_s, lambda: self._kill_if_replaced(victim))
        return victim

    def do_slow_process(self, fault: Fault) -> Address | None:
        """Everything that reaches it takes up to half a second longer."""
        victim = self._anybody(fault.pick)
        self.lag_s[victim] = 0.5 * fault.amount
        self._world.later(fault.lasts_s, lambda: self.lag_s.pop(victim, None))
        return victim

    def do_clock_skew(self, fault: Fault) -> Address | None:
        """Its clock goes up to a fifth too slow or too fast from now on."""
        victim = self._anybody(fault.pick)
        ahead_s = self._world.clock_s(victim) - self._world.now_s  # it never goes back
        self._world.skew(victim, ahead_s, 0.8 + 0.4 * fault.amount)
        return victim

    # --- engines ---

    def do_crash_engine(self, fault: Fault) -> Address | None:
        """It is killed: the slab is as it was left."""
        return self._crash(fault, 9)

    def do_wild_engine(self, fault: Fault) -> Address | None:
        """It ends by a wild write: the slab holds anything."""
        if self._is_poisoned:
            return None
        self.crashes += 1
        return self._crash(fault, 11)

    def do_hang_engine(self, fault: Fault) -> Address | None:
        """It passes no safepoint any more."""
        victim = self._one("instance", fault.pick)
        if victim is not None:
            self._cluster.seats[victim].engine.is_stuck = True
        return victim

    def do_slow_engine(self, fault: Fault) -> Address | None:
        """Its steps take up to twenty times as long for a while."""
        victim = self._one("instance", fault.pick)
        if victim is None:
            return None
        engine = self._cluster.seats[victim].engine
        engine.runner.slowness = 1 + 19 * fault.amount

        def recover() -> None:
            engine.runner.slowness = 1.0

        self._world.later(fault.lasts_s, recover)
        return victim

    def do_disk_full(self, fault: Fault) -> Address | None:
        """The engine is killed, and the next ones cannot write what they need to start."""
        victim = self._whole(fault)
        if victim is None:
            return None
        self._cluster.seats[victim].crash(9, returns=False)
        self._fail_to_start(victim, self._world.now_s + fault.lasts_s)
        return victim

    # --- the network ---

    def do_drop(self, fault: Fault) -> Address | None:
        """A stream breaks, and what was under way on it is lost."""
        pair = self._stream(fault)
        if pair is None:
            return None
        self._touch(fault, *pair)
        self._cluster.reset_stream(*pair, after_s=min(fault.lasts_s, 3.0) * fault.amount)
        return pair[0]

    def do_delay(self, fault: Fault) -> Address | None:
        """A stream stalls; all of it arrives later, in order."""
        pair = self._stream(fault)
        if pair is None:
            return None
        self._touch(fault, *pair)
        self._world.stall(*pair)
        self._world.later(min(fault.lasts_s, LONGEST_PAUSE_S), lambda: self._world.flow(*pair))
        return pair[0]

    def do_half_open(self, fault: Fault) -> Address | None:
        """What is sent either way is lost in silence; one end notices at once, the other when the first comes back."""
        pair = self._stream(fault)
        if pair is None:
            return None
        self._touch(fault, *pair)
        self._cut(pair[0], pair[1], fault)
        return pair[0]

    def do_partition(self, fault: Fault) -> Address | None:
        """Some processes and the others do not hear each other; when that lasts, their streams break."""
        streams = self._cluster.roster.streams()
        there = sorted({one for pair in streams for one in pair})
        side = {one for index, one in enumerate(there) if (index * 7 + int(fault.pick * 97)) % 5 < 1 + 2 * fault.other}
        cut = [pair for pair in streams if (pair[0] in side) != (pair[1] in side) and self._are_open(*pair)]
        for pair in cut:
            self._touch(fault, *pair)
            self._sever_for(pair, fault.lasts_s)
        return sorted(side)[0] if cut else None

    def do_reorder(self, fault: Fault) -> Address | None:
        """Streams of one process are late each by another time: what came first from A comes after B's."""
        victim = self._anybody(fault.pick)
        for index, peer in enumerate(self._world.peers(victim)):
            late_s = fault.lasts_s * ((index * 0.37 + fault.amount) % 1.0)
            if peer.role in ("client", "engine", "dialing", "transport", "processes"):
                continue
            self._touch(fault, peer)
            self._world.stall(victim, peer)
            self._world.later(min(late_s, LONGEST_PAUSE_S), partial(self._world.flow, victim, peer))
        return victim

    def do_duplicate(self, fault: Fault) -> Address | None:
        """Unary calls arrive twice: a client repeats its Submit at another door, a tool its drain, etcd all members."""
        self._cluster.etcd.reset()
        reader = self._open_reader(fault.pick)
        if reader is not None and reader.submit.idempotency:
            twin = self._readers.twin(reader)
            self._world.later(0.0, twin.come)
        victim = self._one("instance", fault.pick)
        if victim is not None:
            self._drain(victim, False)
            self._drain(victim, False)
            self._world.later(min(2.0, fault.lasts_s), lambda: self._drain(victim, True))
            self._world.later(min(2.0, fault.lasts_s) + 0.01, lambda: self._drain(victim, True))
        return victim

    # --- storage ---

    def do_corrupt(self, fault: Fault) -> Address | None:
        """A bit of a region in a host tier flips, or one of each region there."""
        kvstore = self._one("kvstore", fault.pick)
        memory = self._cluster.memories.get(kvstore) if kvstore is not None else None
        offsets = sorted(offset for offset, content in memory.contents.items() if content) if memory else []
        if memory is None or kvstore is None or not offsets:
            return None
        for offset in offsets if fault.amount < 0.5 else [offsets[int(fault.other * len(offsets))]]:
            memory.flip(offset)
            self.damaged.add((kvstore, offset))
        return kvstore

    def do_tier_full(self, fault: Fault) -> Address | None:
        """A process takes most of a host tier's room for a while."""
        kvstore = self._one("kvstore", fault.pick)
        if kvstore is None or self._cluster.etcd.is_down:
            return None
        hog = Address("instance", "hog", self._cluster.etcd.next_revision())
        self._world.add(hog, Hog(hog, kvstore, self._cluster.spec.tier_bytes))
        self._world.join(hog, kvstore)
        self._world.later(fault.lasts_s, lambda: self._end_hog(hog, kvstore))
        return kvstore

    # --- etcd ---

    def do_etcd_outage(self, fault: Fault) -> Address | None:
        """Nobody hears of anybody; a leader steps down."""
        if self._cluster.etcd.is_down:
            return None
        self._cluster.etcd.fail(fault.lasts_s)
        return self._one("global_manager", fault.pick)

    def do_lose_lease(self, fault: Fault) -> Address | None:
        """The leader loses its term and lives on."""
        leader = self._cluster.etcd.leader
        self._cluster.etcd.resign()
        return leader

    def do_late_orders(self, fault: Fault) -> Address | None:
        """A leader's orders are long under way: its successor leads, and its successor's, when they arrive."""
        leader = self._cluster.etcd.leader
        others = [one for one in self._cluster.of_role("global_manager") if one != leader]
        if leader is None or not others or self._cluster.etcd.is_down:
            return None
        late = [pair for pair in self._cluster.roster.streams() if others[0] in pair and self._are_open(*pair)]
        for pair in late:
            self._touch(fault, *pair)
            self._world.stall(*pair)
            self._cluster.world.later(min(fault.lasts_s, LONGEST_PAUSE_S), partial(self._world.flow, *pair))
        self._cluster.etcd.resign()
        self._cluster.world.later(min(0.5, fault.lasts_s) * fault.amount, self._cluster.etcd.resign)
        return others[0]

    def do_watch_reset(self, fault: Fault) -> Address | None:
        """The history of the watches is lost."""
        self._cluster.etcd.reset()
        return self._one("monitor", fault.pick)

    # --- people ---

    def do_cancel_foreign(self, fault: Fault) -> Address | None:
        """Somebody cancels another tenant's request: nothing may come of it."""
        reader = self._open_reader(fault.pick)
        if reader is None or reader.door is None or not reader.request:
            return None
        self._tool(reader.door, CancelById(reader.request, tenant="nobody"))
        return reader.door

    def do_drain(self, fault: Fault) -> Address | None:
        """An operator empties an instance, and uses it again later."""
        victim = self._one("instance", fault.pick)
        if victim is not None:
            self._drain(victim, False)
            self._world.later(min(fault.lasts_s, 4.0), lambda: self._drain(victim, True))
        return victim

    def do_shed(self, fault: Fault) -> Address | None:
        """The leader has an instance give sequences to another."""
        source, target = self._one("instance", fault.pick), self._one("instance", fault.other)
        leader = self._cluster.etcd.leader
        core = self._cluster.core(leader) if leader is not None else None
        if source is None or target is None or source == target or core is None or core.term is None or leader is None:
            return None
        self._tools += 1
        shed = Shed(core.term.epoch, 1_000_000 + self._tools, target, int(1 + 80 * fault.amount))
        self._world.post(leader, source, shed)
        return source

    # --- how ---

    def _kill(self, role: str, fault: Fault, least: int = 1) -> Address | None:
        victim = self._one(role, fault.pick)
        if victim is None or len(self._cluster.of_role(role)) < least:
            return None
        self._kill_now(victim)
        self._world.later(min(fault.lasts_s, 4.0), lambda: self._cluster.start(victim.role, victim.name))
        return victim

    def _kill_now(self, victim: Address) -> None:
        if victim in self._cluster.cores:
            self._cluster.kill(victim)

    def _kill_if_replaced(self, victim: Address) -> None:
        """One whose successor could not start, for want of etcd, goes on."""
        if not self._cluster.roster.is_current(victim):
            self._kill_now(victim)

    def _replace(self, victim: Address) -> None:
        if self._cluster.roster.is_current(victim) and not self._cluster.etcd.is_down:
            self._cluster.outlive(victim)

    def _pause(self, role: str, fault: Fault) -> Address | None:
        victim = self._one(role, fault.pick)
        if victim is None or self._world.is_paused(victim):
            return None
        if role == "instance" and not self._cluster.has_engine(victim):
            return None  # a stopped instance starts no engine
        self._cluster.pause(victim)
        self.asleep_s[victim] = self._world.now_s
        if fault.lasts_s > KEEPALIVE_S:
            self._world.later(KEEPALIVE_S, lambda: self._lose_streams(victim, fault.lasts_s - KEEPALIVE_S))
        self._world.later(fault.lasts_s, lambda: self._wake(victim))
        return victim

    def _wake(self, victim: Address) -> None:
        self.asleep_s.pop(victim, None)
        self._world.resume(victim)

    def _lose_streams(self, victim: Address, for_s: float) -> None:
        """Its peers give up a process that answers no keepalive; it hears so when it wakes."""
        for peer in self._world.peers(victim):
            if peer in self._cluster.cores:
                self._cluster.reset_stream(victim, peer, after_s=for_s + 0.2)

    def _whole(self, fault: Fault) -> Address | None:
        """An instance that runs and has an engine."""
        victim = self._one("instance", fault.pick)
        if victim is None or self._world.is_paused(victim) or not self._cluster.has_engine(victim):
            return None
        return victim

    def _crash(self, fault: Fault, signal: int) -> Address | None:
        victim = self._whole(fault)
        if victim is not None:
            self._cluster.seats[victim].crash(signal)
        return victim

    def _fail_to_start(self, victim: Address, until_s: float) -> None:
        if victim not in self._cluster.cores:
            return
        seat = self._cluster.seats[victim]
        if self._world.now_s >= until_s and not self._world.is_paused(victim):
            return seat.restart()
        self._world.later(max(0.2, seat.settings.restart_s), lambda: self._fail_to_start(victim, until_s))

    def _cut(self, aware: Address, unaware: Address, fault: Fault) -> None:
        self._world.sever(aware, unaware)
        self._world.post(unaware, aware, Gone("keepalive timeout"))
        after_s = min(fault.lasts_s, KEEPALIVE_S)
        self._world.later(after_s, lambda: self._cluster.redial(aware, unaware, unaware))

    def _sever_for(self, pair: tuple[Address, Address], lasts_s: float) -> None:
        one, other = pair
        if lasts_s < KEEPALIVE_S / 2:
            self._world.stall(one, other)
            return self._world.later(lasts_s, lambda: self._world.flow(one, other))
        self._world.sever(one, other)
        self._world.later(KEEPALIVE_S / 2, lambda: self._world.post(one, other, Gone("keepalive timeout")))
        self._world.later(KEEPALIVE_S / 2 + 0.2, lambda: self._world.post(other, one, Gone("keepalive timeout")))
        return self._world.later(lasts_s + KEEPALIVE_S / 2 + 0.3, lambda: self._cluster.redial(one, other))

    def _are_open(self, one: Address, other: Address) -> bool:
        return self._world.is_joined(one, other)

    def _stream(self, fault: Fault) -> tuple[Address, Address] | None:
        """An open stream; which of its ends comes first is chosen too."""
        open_ones = [pair for pair in self._cluster.roster.streams() if self._are_open(*pair)]
        if not open_ones:
            return None
        meant = set(self._preferred(sorted({one for pair in open_ones for one in pair})))
        open_ones = [pair for pair in open_ones if pair[0] in meant or pair[1] in meant]
        one, other = open_ones[int(fault.pick * len(open_ones))]
        return (one, other) if fault.other < 0.5 else (other, one)

    def _one(self, role: str, pick: float) -> Address | None:
        there = self._preferred(self._cluster.of_role(role))
        return there[int(pick * len(there))] if there else None

    def _preferred(self, there: list[Address]) -> list[Address]:
        """Those of them who are in the phase that is aimed at, if any are."""
        return [one for one in there if self._aim and phase_of(one, self._cluster) == self._aim] or there

    def _anybody(self, pick: float) -> Address:
        there = self._cluster.roster.everybody()
        return there[int(pick * len(there))]

    def _open_reader(self, pick: float) -> Reader | None:
        open_ones = [reader for reader in self._readers.open() if reader.request]
        return open_ones[int(pick * len(open_ones))] if open_ones else None

    def _drain(self, instance: Address, undo: bool) -> None:
        leader = self._cluster.etcd.leader
        if leader is not None and self._world.is_up(leader):
            self._tool(leader, DrainRequest(instance.name, undo))

    def _tool(self, to: Address, message: Message) -> None:
        self._tools += 1
        tool = Address("client", f"tool-{self._tools}")
        self._world.add(tool, Silent())
        self._world.join(tool, to)
        self._world.post(tool, to, message)

    def _end_hog(self, hog: Address, kvstore: Address) -> None:
        """It gives everything back, and ends when that has been heard."""
        core = self._cluster.core(kvstore)
        if core is None or hog not in core.catalog.writers():
            return self._world.kill(hog)
        self._world.post(hog, hog, Gone("enough"), 0.0)
        return self._world.later(0.5, lambda: self._end_hog(hog, kvstore))


class Hog:
    """Reserves most of a host tier's room, never writes there, and gives it back at its end."""

    def __init__(self, own: Address, kvstore: Address, tier_bytes: int) -> None:
        self._own = own
        self._kvstore = kvstore
        self._each_bytes = max(4096, tier_bytes // 8)
        self._held: list[HostRegion] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """The kvstore's answers; and its own `Gone`, which ends it."""
        if isinstance(message, Tier):
            return [Send(self._kvstore, self._wish(ticket)) for ticket in range(7)]
        if isinstance(message, RegionReserved):
            self._held.append(message.host)
        if isinstance(message, Gone) and sender == self._own:
            return [Send(self._kvstore, ReleaseRegion(host.handle, host.generation)) for host in self._held]
        return []

    def _wish(self, ticket: int) -> ReserveRegion:
        names = (ticket, self._own, ticket, 1, Region(0, 2, 0, 1), self._each_bytes, "float32", "hog")
        return ReserveRegion(*names, key=f"hog {ticket}")


def kinds() -> tuple[str, ...]:
    """The names of all faults."""
    return tuple(sorted(name.removeprefix("do_") for name in vars(Faults) if name.startswith("do_")))
