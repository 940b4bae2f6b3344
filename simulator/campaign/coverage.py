"""The coverage of a campaign: messages by role, transitions of sequences' states, faults by the victim's phase.

Reads public state of cores; counts, and judges nothing.
"""

from collections import Counter
from typing import Any

from dunlin.effects import Address, Message
from services.dispatcher.requests.request import RequestState
from services.instance.sequence.states import TRANSITIONS
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

INSTANCE_STATES = ("parked", "leaving", "restoring", "spilling", "asking", "draining", "ending")
"""Phases of an instance by the states of its sequences, the rarest first."""
PHASES = {
    "instance": (*INSTANCE_STATES, "receiving", "copying", "computing", "waiting", "idle"),
    "dispatcher": ("asking", "preempted", "dispatched", "queued", "running", "idle"),
    "kvstore": ("quarantined", "reserved", "committed", "empty"),
    "global_manager": ("leading", "standing by"),
    "monitor": ("warming up", "publishing"),
}
"""The phases of each role's processes, the rarest first (`phase_of`)."""


class Coverage:
    """The counts, over any number of trials."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[tuple[str, str]] = Counter()
        self._states: dict[tuple[Address, int], str] = {}

    def begin(self) -> None:
        """Forget the states of the last trial's sequences."""
        self._states.clear()

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        """Called when a core sends a message, if a kind of coverage overrides it."""

    def delivered(self, cluster: SimulatedCluster, event: Delivery) -> None:
        """Count a delivered message and the state transitions that it caused."""
        self.messages[event.to.role, type(event.message).__name__] += 1
        if event.to.role == "instance":
            core = cluster.core(event.to)
            for sequence in core.sequences if core is not None else ():
                self._transition(event.to, sequence.order, sequence.state.value)

    def fault_applied(self, kind: str, role: str, phase: str) -> None:
        """Count a fault by the victim's role and phase."""
        self.faults[kind, f"{role} {phase}"] += 1

    def phases(self, cluster: SimulatedCluster) -> dict[Address, str]:
        """The phase of every process."""
        return {address: phase_of(address, cluster) for address in cluster.cores}

    def add(self, other: "Coverage") -> None:
        """Add the counts of another one."""
        self.messages += other.messages
        self.transitions += other.transitions
        self.faults += other.faults

    def report(self) -> str:
        """The counts as a page of text, with the state transitions and the phases that were never reached."""
        known = {(before.value, after.value) for before, targets in TRANSITIONS.items() for after in targets}
        missing = sorted(turn for turn in known - set(self.transitions) if turn[1] != "ended")
        lines = ["messages delivered, by role:"]
        for role in sorted({role for role, _ in self.messages}):
            kinds = sorted((name, count) for (one, name), count in self.messages.items() if one == role)
            lines.append(f"  {role}: " + ", ".join(f"{name} {count}" for name, count in kinds))
        lines.append("transitions of sequences:")
        lines += [f"  {before} to {after}: {count}" for (before, after), count in sorted(self.transitions.items())]
        lines.append("transitions never seen: " + (", ".join(f"{one} to {other}" for one, other in missing) or "none"))
        lines.append("faults by the victim's phase:")
        for kind in sorted({kind for kind, _ in self.faults}):
            phases = sorted((phase, count) for (one, phase), count in self.faults.items() if one == kind)
            lines.append(f"  {kind}: " + ", ".join(f"{phase} {count}" for phase, count in phases))
            lines += [f"    never: {', '.join(never)}" for never in [self._never(kind)] if never]
        return "\n".join(lines)

    def _never(self, kind: str) -> list[str]:
        """The phases, of the roles that this kind of fault strikes, in which it struck no process."""
        struck = {phase for one, phase in self.faults if one == kind}
        roles = {phase.split(" ", 1)[0] for phase in struck}
        known = [f"{role} {phase}" for role in sorted(roles) for phase in PHASES.get(role, ())]
        return [phase for phase in known if phase not in struck]

    def _transition(self, instance: Address, order: int, state: str) -> None:
        before = self._states.get((instance, order))
        if before != state:
            self._states[instance, order] = state
            self.transitions[before or "new", state] += 1
            self._changed(before or "new", state)

    def _changed(self, before: str, state: str) -> None:
        """Called after each transition, if a kind of coverage overrides it."""


def phase_of(address: Address, cluster: SimulatedCluster) -> str:
    """The phase of a process: the rarest that applies."""
    role, core = address.role, cluster.core(address)
    client = {"instance": _of_instance, "dispatcher": _of_dispatcher, "kvstore": _of_kvstore}.get(role)
    if client is not None:
        return client(core)
    if role == "global_manager":
        return "leading" if core.term is not None else "standing by"
    return "publishing" if core.fleet_views.version else "warming up"


def _of_instance(core: Any) -> str:
    found = _first_of("instance", {sequence.state.value for sequence in core.sequences})
    if found in INSTANCE_STATES:
        return found
    if len(core.migration.migrate_in):
        return "receiving"
    if core.host_cache.pending_moves:
        return "copying"
    if not len(core.sequences):
        return "idle"
    return "computing" if core.steps.outstanding else "waiting"


def _of_dispatcher(core: Any) -> str:
    return _first_of("dispatcher", {_phase_of_request(request.state) for request in core.journal})


def _phase_of_request(state: RequestState) -> str:
    # One phase of two roles that faults aim at: an instance asks for room, a dispatcher for requests to adopt.
    return "asking" if state is RequestState.ADOPTING else state.name.lower()


def _of_kvstore(core: Any) -> str:
    catalog = core.catalog
    entries = (entry for writer in catalog.known_writers() for entry in catalog.entries_of(writer))
    return _first_of("kvstore", {entry.state.name.lower() for entry in entries})


def _first_of(role: str, states: set[str]) -> str:
    """The first of the role's phases that is among `states`, or the last."""
    return next((phase for phase in PHASES[role] if phase in states), PHASES[role][-1])
