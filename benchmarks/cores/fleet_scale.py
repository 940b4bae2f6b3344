"""What one decision costs in fleets of several sizes: `python -m benchmarks.cores.fleet_scale [--sizes 8,512,8192]
[--json]`.

The real cores of dispatcher, manager and monitor are fed messages, with no socket and no other process: a fleet is
joined, seen and busy, then one event at a time is timed, in processor time of this thread. Ratios to the smallest fleet
are what matters: they say what grows with the fleet, whatever the machine. Every event leaves the fleet as it was.
"""

import argparse
import json
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dunlin.config.fields import build
from dunlin.effects import Address, After, Core, Effect, Gone, Joined, Message, Send
from dunlin.messages.dispatch import Ended, Place, Tokens
from dunlin.messages.door import Submit
from dunlin.messages.fleet import FleetView, InstanceReport, MemberView
from dunlin.messages.membership import Elected, Member, MemberDown, MemberUp
from dunlin.messages.plan import GroupOrder, GroupOrderDone
from dunlin.messages.types import FinishReason, GroupRole, i32
from dunlin.policies.presets import PRESETS, preset_settings
from dunlin.wire import codec
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore, MovesDue
from services.global_manager.plan_throttle import PlanDue
from services.monitor.config import LivenessConfig, MonitorConfig
from services.monitor.core import MonitorCore, WatchdogTick

SLOTS = 65_536
MONITOR = Address("monitor", "m", 1)
ETCD = Address("etcd", "")
DISPATCHER = Address("dispatcher", "d", 2)
MANAGER = Address("global_manager", "g", 3)
_PAST_ALL_INTERVALS_S = 1.0


def instance(number: int, incarnation: int = 10) -> Address:
    """The address of one of them."""
    return Address("instance", f"i{number:04}", incarnation)


def busy(number: int, turn: int = 0, **fields: object) -> MemberView:
    """A member with work, another load for each number and turn."""
    used = (number * 7919 + turn * 104_729) % (SLOTS // 2)
    load = {"free_slots": SLOTS - used, "running": 1 + used % 64, "waiting": 0, "waiting_tokens": 0}
    shape = {"ready": True, "capacity_slots": SLOTS, "max_positions": SLOTS, "plan_version": 1, "group": number + 1}
    return MemberView(instance(number), **{**shape, **load, **fields})  # type: ignore[arg-type]


def full(number: int, turn: int = 0) -> MemberView:
    """A member whose next prompt does not fit, as when demand is above what the fleet holds."""
    head = 4096 + (number * 31 + turn) % 1024
    return busy(number, turn, free_slots=number % 1024, waiting=4, waiting_tokens=4 * head, head_waiting_tokens=head)


@dataclass(slots=True)
class TimedCore:
    """Gives messages to a core at times so far apart that no interval holds a thing back, and sums what it took."""

    core: Core
    now_s: float = 100.0
    cpu_s: float = 0.0

    def give(self, sender: Address, message: Message, step_s: float = _PAST_ALL_INTERVALS_S) -> list[Effect]:
        """What the core answers."""
        self.now_s += step_s
        start = time.thread_time_ns()
        effects = self.core.receive(self.now_s, sender, message)
        self.cpu_s += (time.thread_time_ns() - start) * 1e-9
        return list(effects)


Event = Callable[[int], None]
"""Does one turn of something."""


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """CPU seconds of one event, by fleet size; the median over several turns."""

    core: str
    event: str
    cpu_s: dict[int, float]


def dispatcher(size: int, preset: str) -> tuple[TimedCore, dict[str, Event]]:
    """A dispatcher over a busy fleet: place a request and see it end; a view of one; a stream lost and opened."""
    clock = TimedCore(DispatcherCore(DISPATCHER, build(DispatcherConfig, preset_settings(preset, "dispatcher"))))
    for number in range(size):
        clock.give(instance(number), Joined(), 0.0)
    clock.give(MONITOR, Joined())
    clock.give(MONITOR, FleetView(1, tuple(busy(number) for number in range(size))))
    versions = iter(range(1, 1 << 40))

    def request(turn: int) -> None:
        client = Address("client", str(turn))
        effects = clock.give(client, Submit(i32(range(turn, turn + 200)), 1))
        (place,) = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Place)]
        assert isinstance(place.message, Place)
        number, attempt = place.message.request, place.message.attempt
        last = Tokens(
            array("q", [number]), array("i", [attempt]), array("q", [200]), array("i", [1]), array("f", [0.0]),
            array("b", [FinishReason.LENGTH]),
        )  # fmt: skip
        clock.give(place.to, last)
        clock.give(place.to, Ended(number, attempt))

    def view(turn: int) -> None:
        base = next(versions)
        clock.give(MONITOR, FleetView(base + 1, (busy(turn * 37 % size, turn),), base))

    def stream(turn: int) -> None:
        lost = instance(turn * 37 % size)
        clock.give(lost, Gone("reset"))
        clock.give(lost, Joined())

    return clock, {"request": request, "view of one": view, "stream lost and back": stream}


def manager(
    size: int, preset: str, member: Callable[[int, int], MemberView] = busy
) -> tuple[TimedCore, dict[str, Event]]:
    """A leading manager whose orders are done: a view of one, a look at what should move, an instance that restarts."""
    clock = TimedCore(GlobalManagerCore(MANAGER, build(GlobalManagerConfig, preset_settings(preset, "manager"))))
    for number in range(size):
        clock.give(instance(number), Joined(), 0.0)
    members = [replace(member(number, 0), part=_part(preset, number)) for number in range(size)]
    clock.give(MONITOR, FleetView(1, tuple(members)))
    _obey(clock, clock.give(ETCD, Elected(50)))
    versions = iter(range(1, 1 << 40))
    looks = [1]

    def view(turn: int) -> None:
        base, number = next(versions), turn * 37 % size
        clock.give(MONITOR, FleetView(base + 1, (replace(member(number, turn), part=members[number].part),), base))

    def restart(turn: int) -> None:
        number = turn * 37 % size
        lost, newer = members[number], replace(members[number], address=instance(number, 20 + turn))
        members[number] = newer
        base = next(versions)
        clock.give(lost.address, Gone("reset"))
        clock.give(newer.address, Joined())
        effects = clock.give(MONITOR, FleetView(base + 1, (newer,), base, (lost.address,)))
        _obey(clock, effects)

    events: dict[str, Event] = {"view of one": view, "restart of one": restart}
    if PRESETS[preset].rebalance != "none":
        events["look at moves"] = lambda turn: void(clock.give(MANAGER, MovesDue(looks[0])))
    return clock, events


def election(size: int, preset: str) -> tuple[TimedCore, dict[str, Event]]:
    """A new leader that has the view; the fleet's streams to it open one after the other within a second: of each."""
    clock = TimedCore(GlobalManagerCore(MANAGER, build(GlobalManagerConfig, preset_settings(preset, "manager"))))
    epochs = iter(range(50, 1 << 40))

    def take_over(turn: int) -> None:
        clock.core = GlobalManagerCore(MANAGER, build(GlobalManagerConfig, preset_settings(preset, "manager")))
        clock.give(MONITOR, FleetView(1, tuple(busy(number) for number in range(size))))
        clock.give(ETCD, Elected(next(epochs)))
        clock.cpu_s = 0.0
        timers: list[tuple[float, Message]] = []
        for number in range(size):
            effects = clock.give(instance(number), Joined(), 1.0 / size)
            if timers and timers[0][0] <= clock.now_s:
                effects += clock.give(MANAGER, timers.pop(0)[1], 0.0)
            timers += [(clock.now_s + e.delay_s, e.message) for e in effects if _is_plan(e)]  # type: ignore[union-attr]
            _obey(clock, effects)
        clock.cpu_s /= size

    return clock, {"stream to a new leader": take_over}


def _is_plan(effect: Effect) -> bool:
    return isinstance(effect, After) and isinstance(effect.message, PlanDue)


def monitor(size: int) -> tuple[TimedCore, dict[str, Event]]:
    """A monitor with two readers: a report, a member that comes and goes, a look at the progress of all."""
    clock = TimedCore(MonitorCore(MONITOR, MonitorConfig(liveness=LivenessConfig(silent_s=1e9, stuck_s=1e9)), codec))
    for address in (DISPATCHER, MANAGER, *map(instance, range(size))):
        clock.give(address, Joined(), 0.0)
    for number in range(size):
        clock.give(instance(number), _report(number), 0.0)

    def report(turn: int) -> None:
        number = turn * 37 % size
        clock.give(instance(number), _report(number, turn))

    def member(turn: int) -> None:
        new = Address("instance", f"new{turn}", 99)
        clock.give(ETCD, MemberUp(Member(new, "n", "n:1", 1)))
        clock.give(ETCD, MemberDown(new))

    def tick(turn: int) -> None:
        clock.give(MONITOR, WatchdogTick())

    return clock, {"report of one": report, "member up and down": member, "tick": tick}


def void(_: object) -> None:
    """An event has no result."""


def _part(preset: str, number: int) -> GroupRole:
    return (
        (GroupRole.PREFILL, GroupRole.DECODE)[number % 2]
        if PRESETS[preset].group == "prefill_decode"
        else GroupRole.LOCAL
    )


def _report(number: int, turn: int = 0) -> InstanceReport:
    used = (number * 7919 + turn * 104_729) % (SLOTS // 2)
    return InstanceReport(
        ready=True,
        capacity_slots=SLOTS,
        free_slots=SLOTS - used,
        running=1 + used % 64,
        plan_version=1,
        steps_total=turn,
    )


def _obey(clock: TimedCore, effects: list[Effect]) -> None:
    """Each instance that was given an order has done it."""
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, GroupOrder):
            clock.give(effect.to, GroupOrderDone(effect.message.epoch, effect.message.plan_version), 0.0)


Make = Callable[[int], tuple[TimedCore, dict[str, Event]]]
CORES: dict[str, Make] = {
    "dispatcher, least_loaded": lambda size: dispatcher(size, "least_loaded"),
    "dispatcher, chunked": lambda size: dispatcher(size, "chunked"),
    "manager, chunked": lambda size: manager(size, "chunked"),
    "manager, llumnix": lambda size: manager(size, "llumnix"),
    "manager, llumnix, overload": lambda size: manager(size, "llumnix", full),
    "manager, distserve": lambda size: manager(size, "distserve"),
    "manager, chunked, election": lambda size: election(size, "chunked"),
    "manager, distserve, election": lambda size: election(size, "distserve"),
    "monitor": monitor,
}


def measure(sizes: list[int], budget_s: float, only: str = "") -> Iterator[DecisionTimes]:
    """Per core and event: turns until the budget is spent, three at least, at each size."""
    for name, make in CORES.items():
        if only not in name:
            continue
        costs: dict[str, dict[int, float]] = {}
        for size in sizes:
            clock, events = make(size)
            for event, do in events.items():
                costs.setdefault(event, {})[size] = _median(clock, do, budget_s)
        yield from (DecisionTimes(name, event, by_size) for event, by_size in costs.items())


def _median(clock: TimedCore, do: Event, budget_s: float) -> float:
    turns: list[float] = []
    until_s = time.thread_time() + budget_s
    while len(turns) < 3 or (time.thread_time() < until_s and len(turns) < 500):
        clock.cpu_s = 0.0
        do(len(turns))
        turns.append(clock.cpu_s)
    return statistics.median(turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,512,8192", help="of the fleet, the smallest first")
    parser.add_argument("--budget", type=float, default=0.5, help="CPU seconds for each event and size")
    parser.add_argument("--only", default="", help="cores whose name contains this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    found = measure(sizes, options.budget, options.only)
    if options.json:
        print(json.dumps([{"core": one.core, "event": one.event, "cpu_s": one.cpu_s} for one in found]))
        return
    heads = [*(f"{size:,}: µs" for size in sizes), *(f"{size:,} / {sizes[0]}" for size in sizes[1:])]
    print("| core | event | " + " | ".join(heads) + " |\n|---|---|" + "--:|" * len(heads))
    for one in found:
        times = [f"{one.cpu_s[size] * 1e6:.1f}" for size in sizes]
        ratios = [f"{one.cpu_s[size] / one.cpu_s[sizes[0]]:.1f}" for size in sizes[1:]]
        print(f"| {one.core} | {one.event} | " + " | ".join([*times, *ratios]) + " |", flush=True)


if __name__ == "__main__":
    main()
