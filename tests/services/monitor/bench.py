"""A monitor's core driven through exact times, and its peers."""

from typing import Any

from dunlin.effects import Address, After, Effect, Joined, Message, sends
from dunlin.messages.fleet import FleetView, InstanceReport
from dunlin.messages.membership import Member, MembersReset
from dunlin.wire import codec
from services.monitor.config import MonitorConfig
from services.monitor.core import MonitorCore
from tests.settings import configured

ME = Address("monitor", "m", 4)
ETCD = Address("etcd", "")
INSTANCE = Address("instance", "i0", 10)
RESTARTED = Address("instance", "i0", 20)
OTHER = Address("instance", "i1", 11)
DISPATCHER = Address("dispatcher", "d", 12)
MANAGER = Address("global_manager", "g", 13)
TOOL = Address("client", "tool-1")


class Bench:
    """A core with its own timers, driven through exact times; `views` collects what subscribers are sent."""

    def __init__(self, **settings: Any) -> None:
        self.core = MonitorCore(ME, configured(MonitorConfig, **settings), codec)
        self.now_s = 100.0
        self.timers: list[tuple[float, int, Message]] = []
        self.sent: list[tuple[float, Address, Message]] = []
        self.count = 0

    def give(self, sender: Address, message: Message) -> list[Effect]:
        effects = list(self.core.receive(self.now_s, sender, message))
        for effect in effects:
            if isinstance(effect, After):
                self.count += 1
                self.timers.append((self.now_s + effect.delay_s, self.count, effect.message))
        self.sent += [(self.now_s, send.to, send.message) for send in sends(effects)]
        return effects

    def run(self, for_s: float) -> None:
        """Let timers fire up to and including `for_s` from now."""
        end_s = self.now_s + for_s
        while self.timers and min(self.timers)[0] <= end_s:
            timer = min(self.timers)
            self.timers.remove(timer)
            self.now_s = timer[0]
            self.give(ME, timer[2])
        self.now_s = end_s

    def sleep(self, for_s: float) -> None:
        """The monitor is stopped: its timers fire late, at the end, in order."""
        self.now_s += for_s
        late = sorted(timer for timer in self.timers if timer[0] <= self.now_s)
        self.timers = [timer for timer in self.timers if timer[0] > self.now_s]
        for timer in late:
            self.give(ME, timer[2])

    def views(self, to: Address = DISPATCHER) -> list[tuple[float, FleetView]]:
        return [(at_s, message) for at_s, peer, message in self.sent if peer == to and isinstance(message, FleetView)]

    def suspicions(self, instance: Address = INSTANCE) -> list[tuple[float, bool]]:
        """Every change of the instance's suspicion as a dispatcher saw it, by seconds after 100."""
        changes: list[tuple[float, bool]] = []
        for at_s, view in self.views():
            for member in view.members:
                if member.address == instance and (changes[-1][1] if changes else False) != member.suspect:
                    changes.append((round(at_s - 100.0, 6), member.suspect))
        return changes


def make_bench(*peers: Address, **settings: Any) -> Bench:
    """A bench whose monitor knows the (empty) membership, and to which these peers then joined."""
    bench = Bench(**settings)
    bench.give(ETCD, MembersReset(()))
    for peer in peers or (DISPATCHER, INSTANCE):
        bench.give(peer, Joined())
    return bench


def report(**fields: Any) -> InstanceReport:
    return InstanceReport(**({"ready": True, "capacity_slots": 100, "free_slots": 100, "engine_pid": 9} | fields))


def member(address: Address, pid: int = 1) -> Member:
    return Member(address, "127.0.0.1:1", "n", pid)


def heartbeat(bench: Bench, for_s: float, every_s: float = 0.5, instance: Address = INSTANCE, /, **fields: Any) -> None:
    """An instance reports the same thing again and again."""
    for _ in range(round(for_s / every_s)):
        bench.run(every_s)
        bench.give(instance, report(**fields))
