"""Faults of engines: killed, wild writes, stuck, slow, no disk space to start."""

from dunlin.effects import Address
from simulator.campaign.faults.victims import VictimChooser
from simulator.campaign.plans import Fault
from simulator.cluster.simulated import SimulatedCluster


class EngineFaults:
    """Faults of engines. With `is_poisoned` no engine crashes by chance, since what runs alone then would be blamed."""

    def __init__(self, cluster: SimulatedCluster, victims: VictimChooser, is_poisoned: bool) -> None:
        self.crashes = 0
        self._cluster = cluster
        self._world = cluster.world
        self._victims = victims
        self._is_poisoned = is_poisoned

    def do_crash_engine(self, fault: Fault) -> Address | None:
        """SIGKILL; the KV cache stays as it was."""
        return self._crash(fault, 9)

    def do_wild_engine(self, fault: Fault) -> Address | None:
        """SIGSEGV: the KV cache may hold anything."""
        if self._is_poisoned:
            return None
        self.crashes += 1
        return self._crash(fault, 11)

    def do_late_answers(self, fault: Fault) -> Address | None:
        """SIGKILL, and what the engine said last arrives again after its successor's first words."""
        victim = self._crash(fault, 9)
        if victim is not None:
            self._cluster.engine_supervisors[victim].repeat_last_words()
        return victim

    def do_hang_engine(self, fault: Fault) -> Address | None:
        """The engine passes no safepoint any more."""
        victim = self._victims.of_role("instance", fault.pick)
        if victim is not None:
            self._cluster.engine_supervisors[victim].engine.is_stuck = True
        return victim

    def do_slow_engine(self, fault: Fault) -> Address | None:
        """Steps take up to twenty times as long for a while."""
        victim = self._victims.of_role("instance", fault.pick)
        if victim is None:
            return None
        engine = self._cluster.engine_supervisors[victim].engine
        engine.runner.slowness = 1 + 19 * fault.amount

        def recover() -> None:
            engine.runner.slowness = 1.0

        self._world.call_later(fault.lasts_s, recover)
        return victim

    def do_disk_full(self, fault: Fault) -> Address | None:
        """SIGKILL, and successors end at their start for want of disk space."""
        victim = self._victims.running_instance(fault)
        if victim is None:
            return None
        self._cluster.engine_supervisors[victim].crash(9, returns=False)
        self._fail_to_start(victim, self._world.now_s + fault.lasts_s)
        return victim

    def _crash(self, fault: Fault, signal: int) -> Address | None:
        victim = self._victims.running_instance(fault)
        if victim is not None:
            self._cluster.engine_supervisors[victim].crash(signal)
        return victim

    def _fail_to_start(self, victim: Address, until_s: float) -> None:
        if victim not in self._cluster.cores:
            return
        supervisor = self._cluster.engine_supervisors[victim]
        if self._world.now_s >= until_s and not self._world.is_paused(victim):
            return supervisor.restart()
        self._world.call_later(max(0.2, supervisor.settings.restart_s), lambda: self._fail_to_start(victim, until_s))
