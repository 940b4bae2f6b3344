"""Faults of processes: killed, stopped, replaced while stopped, slow, clock skew."""

from dunlin.effects import Address
from simulator.campaign.faults.victims import KEEPALIVE_S, VictimChooser
from simulator.campaign.plans import Fault
from simulator.cluster.simulated import SimulatedCluster


class ProcessFaults:
    """Faults of processes. `asleep_s`: when each stopped process stopped. `lag_s`: extra latency of its messages."""

    def __init__(self, cluster: SimulatedCluster, victims: VictimChooser, lag_s: dict[Address, float]) -> None:
        self.asleep_s: dict[Address, float] = {}
        self.lag_s = lag_s
        self._cluster = cluster
        self._world = cluster.world
        self._victims = victims

    def do_kill_instance(self, fault: Fault) -> Address | None:
        """SIGKILL; a successor starts later."""
        return self._kill("instance", fault, least=2)

    def do_kill_dispatcher(self, fault: Fault) -> Address | None:
        """SIGKILL; clients resume at other dispatchers."""
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
        """SIGSTOP; its engine runs on."""
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
        """A process stops and is replaced; it resumes beside its successor, and is killed later."""
        roles = ("monitor", "global_manager", "kvstore", "dispatcher")
        victim = self._victims.of_role(roles[int(fault.other * len(roles))], fault.pick)
        if victim is None or self._world.is_paused(victim) or self._cluster.etcd.is_down:
            return None
        self._cluster.pause(victim)
        self._world.call_later(min(0.3, fault.lasts_s), lambda: self._replace(victim))
        self._world.call_later(0.5 + fault.lasts_s, lambda: self._world.resume(victim))
        self._world.call_later(2.0 + fault.lasts_s, lambda: self._kill_if_replaced(victim))
        return victim

    def do_slow_process(self, fault: Fault) -> Address | None:
        """Messages to a process take up to half a second longer."""
        victim = self._victims.any_process(fault.pick)
        self.lag_s[victim] = 0.5 * fault.amount
        self._world.call_later(fault.lasts_s, lambda: self.lag_s.pop(victim, None))
        return victim

    def do_clock_skew(self, fault: Fault) -> Address | None:
        """A process's clock runs up to a fifth too slow or too fast from now on."""
        victim = self._victims.any_process(fault.pick)
        ahead_s = self._world.clock_s(victim) - self._world.now_s  # it never goes back
        self._world.set_clock(victim, ahead_s, 0.8 + 0.4 * fault.amount)
        return victim

    def _kill(self, role: str, fault: Fault, least: int = 1) -> Address | None:
        victim = self._victims.of_role(role, fault.pick)
        if victim is None or len(self._cluster.of_role(role)) < least:
            return None
        self._kill_now(victim)
        self._world.call_later(min(fault.lasts_s, 4.0), lambda: self._cluster.start(victim.role, victim.name))
        return victim

    def _kill_now(self, victim: Address) -> None:
        if victim in self._cluster.cores:
            self._cluster.kill(victim)

    def _kill_if_replaced(self, victim: Address) -> None:
        """Kill it, unless its successor could not start during an etcd outage."""
        if not self._cluster.roster.is_current(victim):
            self._kill_now(victim)

    def _replace(self, victim: Address) -> None:
        if self._cluster.roster.is_current(victim) and not self._cluster.etcd.is_down:
            self._cluster.replace_paused(victim)

    def _pause(self, role: str, fault: Fault) -> Address | None:
        victim = self._victims.of_role(role, fault.pick)
        if victim is None or self._world.is_paused(victim):
            return None
        if role == "instance" and not self._cluster.has_engine(victim):
            return None  # a stopped instance starts no engine
        self._cluster.pause(victim)
        self.asleep_s[victim] = self._world.now_s
        if fault.lasts_s > KEEPALIVE_S:
            self._world.call_later(KEEPALIVE_S, lambda: self._lose_streams(victim, fault.lasts_s - KEEPALIVE_S))
        self._world.call_later(fault.lasts_s, lambda: self._wake(victim))
        return victim

    def _wake(self, victim: Address) -> None:
        self.asleep_s.pop(victim, None)
        self._world.resume(victim)

    def _lose_streams(self, victim: Address, for_s: float) -> None:
        """Break all streams of a stopped process, whose peers get no keepalive; it learns so when it resumes."""
        for peer in self._world.peers(victim):
            if peer in self._cluster.cores:
                self._cluster.reset_stream(victim, peer, after_s=for_s + 0.2)
