"""The twin of `benchmarks.faults.group_faults`: how long streams are silent when a group loses a process.

    python -m benchmarks.simulation.group_silences --seeds 12

Four modelled instances of 512 slots, prompts of 1.2 to 2.8 slabs and short ones in turn. In each run one process is
struck while a stream has begun, and comes back as a live one does: the leader of a group, a member, or the engine of
either. A line names the fault and the longest silence around or after it of each stream that was open. Exact: the same
seeds give the same figures everywhere.
"""

import argparse
import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness.report import say
from dunlin.effects import Address
from dunlin.messages.door import Delta
from dunlin.messages.types import GroupRole
from dunlin.workload.loadgen.stats import percentiles
from services.instance.core import InstanceCore
from simulator.campaign.clients import CampaignClients
from simulator.campaign.cluster_shape import cluster_of
from simulator.campaign.plans import VOCABULARY, ClusterShape, PlannedRequest
from simulator.campaign.runner import plan_of
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

SLOTS = 512
REQUESTS, OUTPUT_TOKENS = 14, 48
STOP_S, BACK_S = 4.0, 6.0
"""Seconds of a stop, and until a killed instance's successor starts."""
FAULTS = ("kill of leader", "kill of member", "kill of engine of leader", "kill of engine of member", "stop of member")


def shape() -> ClusterShape:
    """Four instances whose engines meet, an engine that is back after 2 s, steps of 20 ms; no tier to speak of."""
    fixed = {"instances": 4, "dispatchers": 1, "managers": 2, "nodes": 1, "slots": SLOTS, "tier_bytes": 1 << 22}
    paces = {"step_s": 0.02, "move_s": 0.005, "restart_s": 2.0, "latency_s": 0.001, "checkpoint_share": 0.0}
    limits = {"max_running": 16, "budget_tokens": SLOTS, "run_ahead_tokens": 16, "max_queued": 100, "quotas": None}
    kinds = {"preset": "elastic", "skews": (0.0,), "prefix_reuse": True, "replicate": False, "batch_wait_s": 0.0}
    more = {"has_agents": True, "has_long_prompts": True, "has_profiles": True, "interrupts": "never", "rebalance": ""}
    return replace(plan_of(0).shape, **fixed, **paces, **limits, **kinds, **more)  # type: ignore[arg-type]


def requests(draw: random.Random) -> list[PlannedRequest]:
    """Long prompts and short ones in turn, one a moment."""
    found, at_s = [], 0.0
    for number in range(REQUESTS):
        length = draw.randint(8, 64) if number % 2 else int(SLOTS * draw.uniform(1.2, 2.8))
        tokens = tuple(draw.randrange(VOCABULARY) for _ in range(length))
        found.append(PlannedRequest(number, at_s, tokens, OUTPUT_TOKENS, "", 0))
        at_s += draw.uniform(0.2, 1.2)
    return found


class SilenceRun:
    """One cluster and one fault. `token_s` has the times of each client's tokens."""

    def __init__(self, seed: int, fault: str) -> None:
        self.token_s: dict[Address, list[float]] = {}
        self.struck_s = 0.0
        self._draw = random.Random(seed)
        self._fault = fault
        self.cluster = SimulatedCluster(cluster_of(shape()))
        self._world = self.cluster.world
        self._clients = CampaignClients(self.cluster)

    def silences(self) -> list[float]:
        """Run it; the longest silence of each stream that was open, in seconds."""
        self._world.run(lambda: self.cluster.is_ready, for_s=20.0)
        self._world.on_delivered = self._note
        for ask in requests(self._draw):
            for at_s, act in self._clients.arrivals(ask):
                self._world.call_later(at_s, act)
        self._world.call_later(self._draw.uniform(4.0, 7.0), self._strike)
        self._world.run(for_s=REQUESTS * 1.2)
        self._world.run(self._clients.all_done, for_s=240.0)
        streams = [times for times in self.token_s.values() if times[0] < self.struck_s < times[-1]]
        return [_longest(times, self.struck_s) for times in streams if self.struck_s]

    def _note(self, event: Delivery) -> None:
        if isinstance(event.message, Delta) and event.message.tokens:
            self.token_s.setdefault(event.to, []).append(self._world.now_s)

    def _strike(self) -> None:
        part = GroupRole.LEADER if "leader" in self._fault else GroupRole.MEMBER
        orders = [(core, core.group_order) for core in self.cluster.instances.values()]
        victims = [core for core, order in orders if order is not None and order.part is part]
        if not victims or not self.token_s:
            return self._world.call_later(0.05, self._strike)
        self.struck_s = self._world.now_s
        return self._hit(victims[self._draw.randrange(len(victims))])

    def _hit(self, victim: InstanceCore) -> None:
        address = victim.address
        if "engine" in self._fault:
            self.cluster.engine_supervisors[address].crash(9)
        elif "stop" in self._fault:
            self.cluster.pause(address)
            self._world.call_later(STOP_S, lambda: self._world.resume(address))
        else:
            self.cluster.kill(address)
            self._world.call_later(BACK_S, lambda: self.cluster.start("instance", address.name))


def _longest(times: list[float], struck_s: float) -> float:
    return max(later - earlier for earlier, later in itertools.pairwise(times) if later >= struck_s)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=12, metavar="N", help="runs of each fault")
    given = arguments.parse_args(argv)
    for fault in FAULTS:
        found: list[float] = []
        for seed in range(given.seeds):
            found += SilenceRun(seed, fault).silences()
        met = percentiles(found)
        say(f"{fault}: {len(found)} streams, silence p50 {met.p50:.2f} s, p99 {met.p99:.2f} s, most {met.max:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
