"""Faults of the network: streams that break, stall, go silent, and interleave in another order."""

from functools import partial

from dunlin.effects import Address, Gone
from simulator.campaign.faults.victims import KEEPALIVE_S, VictimChooser
from simulator.campaign.plans import Fault
from simulator.cluster.simulated import SimulatedCluster

LONGEST_PAUSE_S = 9.0
"""Seconds, shorter than the keepalive: a stream that stalls for longer breaks, which is `half_open`."""


class NetworkFaults:
    """Faults of open streams."""

    def __init__(self, cluster: SimulatedCluster, victims: VictimChooser) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._victims = victims

    def do_drop(self, fault: Fault) -> Address | None:
        """A stream breaks; what is in flight is lost."""
        pair = self._victims.stream(fault)
        if pair is None:
            return None
        self._victims.mark_disturbed(fault, *pair)
        self._cluster.reset_stream(*pair, after_s=min(fault.lasts_s, 3.0) * fault.amount)
        return pair[0]

    def do_delay(self, fault: Fault) -> Address | None:
        """A stream stalls; its messages arrive later, in order."""
        pair = self._victims.stream(fault)
        if pair is None:
            return None
        self._victims.mark_disturbed(fault, *pair)
        self._world.stall(*pair)
        self._world.call_later(min(fault.lasts_s, LONGEST_PAUSE_S), lambda: self._world.unstall(*pair))
        return pair[0]

    def do_half_open(self, fault: Fault) -> Address | None:
        """A stream is cut silently: one end notices at once, the other when the first dials again."""
        pair = self._victims.stream(fault)
        if pair is None:
            return None
        self._victims.mark_disturbed(fault, *pair)
        self._cut(pair[0], pair[1], fault)
        return pair[0]

    def do_partition(self, fault: Fault) -> Address | None:
        """Streams between two sides stall; if that lasts, they break."""
        streams = self._cluster.roster.streams()
        there = sorted({one for pair in streams for one in pair})
        side = {one for index, one in enumerate(there) if (index * 7 + int(fault.pick * 97)) % 5 < 1 + 2 * fault.other}
        cut = [pair for pair in streams if (pair[0] in side) != (pair[1] in side) and self._world.is_connected(*pair)]
        for pair in cut:
            self._victims.mark_disturbed(fault, *pair)
            self._sever_for(pair, fault.lasts_s)
        return sorted(side)[0] if cut else None

    def do_reorder(self, fault: Fault) -> Address | None:
        """Each stream of one process is delayed differently, so that messages of its peers interleave otherwise."""
        victim = self._victims.any_process(fault.pick)
        for index, peer in enumerate(self._world.peers(victim)):
            late_s = fault.lasts_s * ((index * 0.37 + fault.amount) % 1.0)
            if peer.role in ("client", "engine", "dialing", "transport", "processes"):
                continue
            self._victims.mark_disturbed(fault, peer)
            self._world.stall(victim, peer)
            self._world.call_later(min(late_s, LONGEST_PAUSE_S), partial(self._world.unstall, victim, peer))
        return victim

    def _cut(self, aware: Address, unaware: Address, fault: Fault) -> None:
        self._world.sever(aware, unaware)
        self._world.post(unaware, aware, Gone("keepalive timeout"))
        after_s = min(fault.lasts_s, KEEPALIVE_S)
        self._world.call_later(after_s, lambda: self._cluster.redial(aware, unaware, unaware))

    def _sever_for(self, pair: tuple[Address, Address], lasts_s: float) -> None:
        one, other = pair
        if lasts_s < KEEPALIVE_S / 2:
            self._world.stall(one, other)
            return self._world.call_later(lasts_s, lambda: self._world.unstall(one, other))
        self._world.sever(one, other)
        self._world.call_later(KEEPALIVE_S / 2, lambda: self._world.post(one, other, Gone("keepalive timeout")))
        self._world.call_later(KEEPALIVE_S / 2 + 0.2, lambda: self._world.post(other, one, Gone("keepalive timeout")))
        return self._world.call_later(lasts_s + KEEPALIVE_S / 2 + 0.3, lambda: self._cluster.redial(one, other))
