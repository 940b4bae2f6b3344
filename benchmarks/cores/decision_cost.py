"""What a decision costs beside many instances: `python -m benchmarks.cores.decision_cost [--instances N …]
[--policy P] [--json]`.

The real core of a dispatcher, given views and streams of N instances, takes requests one after the other and hands each
out, with others running everywhere; and the real core of a monitor takes reports of N instances and tells a dispatcher.
Processor time per decision, report and view; no socket, no process.
"""

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass

from dunlin.effects import Address, After, Joined, sends
from dunlin.messages.dispatch import Accepted, Place
from dunlin.messages.door import Submit
from dunlin.messages.fleet import FleetView, InstanceReport, MemberView
from dunlin.messages.membership import Member, MemberUp
from dunlin.messages.types import GroupKind, GroupRole, i32
from dunlin.policies.dispatch import DISPATCH_POLICIES
from dunlin.wire import codec
from services.dispatcher.config import DispatcherConfig, PlacementConfig
from services.dispatcher.core import DispatcherCore
from services.monitor.config import MonitorConfig
from services.monitor.core import MonitorCore

DISPATCHER, MONITOR = Address("dispatcher", "d", 1), Address("monitor", "m", 2)
ETCD = Address("etcd", "")
SLOTS = 100_000
PROMPT_TOKENS = 256


@dataclass(frozen=True)
class DecisionCost:
    """Microseconds of processor time: a dispatch, one member of a view, one report with its share of the views."""

    instances: int
    decision_us: float
    member_us: float
    report_us: float


def instance(number: int) -> Address:
    """One of the fleet."""
    return Address("instance", f"i{number}", 100 + number)


def view_of(number: int, draw: random.Random) -> MemberView:
    """What a monitor says of it: somewhat busy."""
    free, running = draw.randrange(SLOTS // 2, SLOTS), draw.randrange(40)
    return MemberView(
        instance(number),
        ready=True,
        capacity_slots=SLOTS,
        free_slots=free,
        running=running,
        max_positions=SLOTS,
        plan_version=1,
        kind=GroupKind.LOCAL,
        part=GroupRole.LOCAL,
    )


def dispatcher_of(count: int, policy: str, draw: random.Random) -> DispatcherCore:
    """A dispatcher with streams to all of them and one view."""
    core = DispatcherCore(DISPATCHER, DispatcherConfig(placement=PlacementConfig(policy=policy)))
    for number in range(count):
        core.receive(0.0, instance(number), Joined())
    core.receive(0.0, MONITOR, FleetView(1, tuple(view_of(number, draw) for number in range(count))))
    return core


def decision_us(core: DispatcherCore, requests: int, draw: random.Random) -> float:
    """From a request to its acceptance: one in four begins like one before."""
    texts: list[list[int]] = []
    took_s = 0.0
    for number in range(requests):
        text = [draw.randrange(30_000) for _ in range(PROMPT_TOKENS)]
        if texts and draw.random() < 0.25:
            text[: PROMPT_TOKENS // 2] = draw.choice(texts)[: PROMPT_TOKENS // 2]
        texts.append(text)
        submit, client = Submit(i32(text), 100), Address("client", str(number))
        began_s = time.process_time()
        effects = core.receive(1.0, client, submit)
        ((to, place),) = [(each.to, each.message) for each in sends(effects) if isinstance(each.message, Place)]
        core.receive(1.0, to, Accepted(place.request, place.attempt, 1))
        took_s += time.process_time() - began_s
    return took_s / requests * 1e6


def member_us(core: DispatcherCore, count: int, draw: random.Random) -> float:
    """Of a view in which every instance changed."""
    view = FleetView(2, tuple(view_of(number, draw) for number in range(count)), base_version=1)
    began_s = time.process_time()
    core.receive(2.0, MONITOR, view)
    return (time.process_time() - began_s) / count * 1e6


def report_us(count: int, rounds: int, draw: random.Random) -> float:
    """Of a report to a monitor, with the views that follow from all of them."""
    core = MonitorCore(MONITOR, MonitorConfig(), codec)
    core.receive(0.0, DISPATCHER, Joined())
    for number in range(count):
        core.receive(0.0, ETCD, MemberUp(Member(instance(number), "host:1", "node", 1)))
        core.receive(0.0, instance(number), Joined())
    took_s, due = 0.0, []
    for turn in range(1, rounds + 1):
        for number in range(count):
            report = InstanceReport(ready=True, capacity_slots=SLOTS, free_slots=draw.randrange(SLOTS), safepoints=turn)
            began_s = time.process_time()
            effects = core.receive(turn * 0.5 + number * 0.4 / count, instance(number), report)
            took_s += time.process_time() - began_s
            due += [effect for effect in effects if isinstance(effect, After)]
        began_s = time.process_time()
        waiting, due = due, []
        for after in waiting:
            core.receive(turn * 0.5 + 0.45, MONITOR, after.message)
        took_s += time.process_time() - began_s
    return took_s / (count * rounds) * 1e6


def measure(count: int, policy: str, requests: int) -> DecisionCost:
    """The costs beside `count` instances."""
    draw = random.Random(count)
    core = dispatcher_of(count, policy, draw)
    decision = decision_us(core, requests, draw)
    return DecisionCost(count, decision, member_us(core, count, draw), report_us(count, 3, draw))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, nargs="+", default=[3, 300, 8192])
    parser.add_argument("--policy", choices=sorted(DISPATCH_POLICIES), default="prefix_affinity")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    costs = [measure(count, options.policy, options.requests) for count in options.instances]
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return
    print(f"{options.policy}, {options.requests} requests of {PROMPT_TOKENS} tokens; microseconds of processor time")
    print(f"{'instances':>10} {'a decision':>12} {'a member':>12} {'a report':>12}")
    for cost in costs:
        print(f"{cost.instances:10} {cost.decision_us:12.1f} {cost.member_us:12.1f} {cost.report_us:12.1f}")


if __name__ == "__main__":
    main()
