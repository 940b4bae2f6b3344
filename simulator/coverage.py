"""What a campaign has exercised: kinds of messages by role, states of sequences and requests, faults by phase.

Reads what cores show; counts, and judges nothing.
"""

from collections import Counter
from typing import Any

from dunlin.effects import Address
from services.instance.sequences import LEGAL
from simulator.cluster import Cluster
from simulator.process import Event


class Coverage:
    """The counts, over any number of runs."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.turns: Counter[tuple[str, str]] = Counter()
        self.strikes: Counter[tuple[str, str]] = Counter()
        self._states: dict[tuple[Address, int], str] = {}

    def begin(self) -> None:
        """Another run."""
        self._states.clear()

    def delivered(self, cluster: Cluster, event: Event) -> None:
        """A message was delivered."""
        self.messages[event.to.role, type(event.message).__name__] += 1
        if event.to.role == "instance":
            core = cluster.core(event.to)
            for sequence in core.sequences if core is not None else ():
                self._turn(event.to, sequence.order, sequence.state.value)

    def struck(self, kind: str, role: str, phase: str) -> None:
        """A fault struck somebody in that phase."""
        self.strikes[kind, f"{role} {phase}"] += 1

    def phases(self, cluster: Cluster) -> dict[Address, str]:
        """What everybody is doing."""
        return {address: phase_of(address, cluster) for address in cluster.cores}

    def add(self, other: "Coverage") -> None:
        """Count what another has counted."""
        self.messages += other.messages
        self.turns += other.turns
        self.strikes += other.strikes

    def report(self) -> str:
        """A page of text: what was exercised, and which turns of a sequence's life were not."""
        known = {(before.value, after.value) for before, targets in LEGAL.items() for after in targets}
        missing = sorted(turn for turn in known - set(self.turns) if turn[1] != "ended")
        lines = ["messages delivered, by role:"]
        for role in sorted({role for role, _ in self.messages}):
            kinds = sorted((name, count) for (one, name), count in self.messages.items() if one == role)
            lines.append(f"  {role}: " + ", ".join(f"{name} {count}" for name, count in kinds))
        lines.append("turns in a sequence's life:")
        lines += [f"  {before} to {after}: {count}" for (before, after), count in sorted(self.turns.items())]
        lines.append("turns never seen: " + (", ".join(f"{one} to {other}" for one, other in missing) or "none"))
        lines.append("faults by what the victim was doing:")
        for kind in sorted({kind for kind, _ in self.strikes}):
            phases = sorted((phase, count) for (one, phase), count in self.strikes.items() if one == kind)
            lines.append(f"  {kind}: " + ", ".join(f"{phase} {count}" for phase, count in phases))
        return "\n".join(lines)

    def _turn(self, instance: Address, order: int, state: str) -> None:
        before = self._states.get((instance, order))
        if before != state:
            self._states[instance, order] = state
            self.turns[before or "new", state] += 1


def phase_of(address: Address, cluster: Cluster) -> str:
    """What the process is doing: the least common thing."""
    role, core = address.role, cluster.core(address)
    reader = {"instance": _of_instance, "dispatcher": _of_dispatcher, "kvstore": _of_kvstore}.get(role)
    if reader is not None:
        return reader(core)
    if role == "global_manager":
        return "leading" if core.term is not None else "standing by"
    return "publishing" if core.views.version else "warming up"


def _of_instance(core: Any) -> str:
    states = {sequence.state.value for sequence in core.sequences}
    for state in ("leaving", "restoring", "spilling", "asking", "draining", "ending"):
        if state in states:
            return state
    if len(core.migration.arrivals):
        return "receiving"
    if core.tier.moves:
        return "copying"
    if not states:
        return "idle"
    return "computing" if core.steps.outstanding else "waiting"


def _of_dispatcher(core: Any) -> str:
    states = {request.state.name.lower() for request in core.journal}
    for state in ("asking", "preempted", "offered", "queued", "running"):
        if state in states:
            return state
    return "idle"


def _of_kvstore(core: Any) -> str:
    catalog = core.catalog
    states = {entry.state.name.lower() for writer in catalog.writers() for entry in catalog.entries_of(writer)}
    for state in ("quarantined", "reserved", "committed"):
        if state in states:
            return state
    return "empty"
