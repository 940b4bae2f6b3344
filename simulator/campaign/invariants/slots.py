"""I8: slots, room and entries add up at any instant and in the end; a slot has one writer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dunlin.effects import Address
from dunlin.messages.engine import (
    Close,
    Discard,
    EngineExited,
    Interrupted,
    Resume,
    Step,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import TransferKind
from services.instance.sequence.states import SequenceState
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

FULL_EVERY = 64
"""Events of one core between two checks of all of it; its sums are checked at each event."""


class SlotWatcher(InvariantWatcher):
    """I8: no slot, byte of room or entry is lost or held twice; in the end all are free."""

    invariant = "I8"
    roles = ("dispatcher", "instance", "kvstore")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._seen: dict[Address, int] = {}
        self._checks: dict[str, Callable[[Any], None]] = {
            "instance": lambda core: core.lifecycle.kv_cache.check_integrity(),
            "dispatcher": lambda core: core.journal.check_integrity(),
            "kvstore": lambda core: core.catalog.check_integrity(),
        }

    def after(self, event: Delivery) -> None:
        role = event.to.role
        if role not in self._checks:
            return
        core = self.cluster.core(event.to)
        if core is None:
            return
        seen = self._seen[event.to] = self._seen.get(event.to, 0) + 1
        if seen % FULL_EVERY == 0:
            self._check(role, core)
        elif role == "instance" and not core.slot_table.is_conserved:
            raise self.fail(f"{event.to}: {core.slot_table!r} after {event}")

    def audit(self) -> None:
        for address in sorted(self.cluster.cores):
            if address.role in self._checks:
                self._check(address.role, self.cluster.core(address))
        for core in self.cluster.instances.values():
            strange = [row for row in core.steps.parked_rows() if row.sequence.state is not SequenceState.PARKED]
            if strange:
                raise self.fail(f"{core.address} has parked rows of sequences that are not parked: {strange}")

    def at_end(self) -> None:
        for core in self.cluster.instances.values():
            held = core.slot_table.capacity - core.slot_table.free - core.lifecycle.kv_cache.cached_slots
            if held:
                raise self.fail(f"{core.address} keeps {held} slots without an owner: {core!r}")
            if len(core.sequences):
                raise self.fail(f"{core.address} keeps {core.sequences!r}", "I12")
        for dispatcher in self.cluster.dispatchers.values():
            if len(dispatcher.journal):
                raise self.fail(f"{dispatcher.address} keeps {len(dispatcher.journal)} requests", "I12")
        for address in self.cluster.of_role("kvstore"):
            catalog = self.cluster.core(address).catalog
            if len(catalog):
                raise self.fail(f"{address} keeps {len(catalog)} regions without an owner")

    def _check(self, role: str, core: Any) -> None:
        try:
            self._checks[role](core)
        except Exception as error:
            raise self.fail(f"{core.address}: {type(error).__name__}: {error}") from error


@dataclass(slots=True)
class _Writes:
    """The slots that one engine writes, each with its sequence: by outstanding step, and by parked sequence. `moves`:
    those that copies from the host tier write, by ticket.
    """

    steps: dict[int, dict[int, int]] = field(default_factory=dict)
    parked: dict[int, dict[int, int]] = field(default_factory=dict)
    moves: dict[int, set[int]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    """Sequences that the engine does not know any more: the answer that a row of one is parked may come later."""

    def left(self, step: int, sequence: int, parked: bool) -> None:
        """A row left a step."""
        written = self.steps.get(step, {})
        slots = {slot: owner for slot, owner in written.items() if owner == sequence}
        for slot in slots:
            del written[slot]
        if parked and sequence not in self.closed:
            self.parked[sequence] = slots

    def close(self, sequence: int) -> None:
        """The engine forgets a sequence."""
        self.parked.pop(sequence, None)
        self.closed.add(sequence)

    def resumed(self, message: Resume) -> None:
        """Parked rows are a step again."""
        self.steps[message.step] = {
            slot: owner for number in message.sequence for slot, owner in self.parked.pop(number, {}).items()
        }

    def holder(self, slots: dict[int, int]) -> str:
        """Which row writes one of `slots` that is given to another; empty if none does."""
        steps = [(f"in outstanding step {step}", written) for step, written in self.steps.items()]
        for where, written in [*steps, *(("in a parked row", written) for written in self.parked.values())]:
            for slot in written.keys() & slots.keys():
                if written[slot] != slots[slot]:
                    return f"slot {slot} is sequence {written[slot]}'s {where}"
        return ""

    def mover(self, slots: dict[int, int]) -> str:
        """Which copy writes one of `slots`, which a step is to write; empty if none does."""
        for ticket, written in self.moves.items():
            for slot in written & slots.keys():
                return f"slot {slot} is written by move {ticket}"
        return ""


class RowWriteWatcher(InvariantWatcher):
    """I8: no later step of another sequence and no move gets slots that an outstanding step or a parked row writes, and
    no step those that a copy from the host tier writes.
    """

    invariant = "I8"
    roles = ("engine", "instance")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._written: dict[Address, _Writes] = {}

    def before(self, event: Delivery) -> None:
        message = event.message
        if event.to.role == "engine":
            self._told(event)
        elif isinstance(message, StepDone) or (isinstance(message, Unsupported) and message.step):
            self._writes_of(event).steps.pop(message.step, None)
        elif isinstance(message, TransferDone | Unsupported):
            self._writes_of(event).moves.pop(message.ticket, None)
        elif isinstance(message, Interrupted):
            for row in zip(message.step, message.sequence, message.parked, strict=True):
                self._writes_of(event).left(row[0], row[1], bool(row[2]))
        elif isinstance(message, EngineExited):
            self._written.pop(event.to, None)

    def _told(self, event: Delivery) -> None:
        message, writes = event.message, self._written.get(event.sender)
        if writes is None:
            writes = self._written[event.sender] = _Writes()
        if isinstance(message, Step):
            slots = _slots_of(message)
            self._are_free(event, slots, writes)
            if mover := writes.mover(slots):
                raise self.fail(f"{mover}, and given to a step by {event}")
            writes.steps[message.step] = slots
        elif isinstance(message, Transfer) and message.kind is TransferKind.HOST_TO_SLAB:
            extents = zip(message.extent_start, message.extent_length, strict=True)
            slots = {slot: -1 for first, length in extents for slot in range(first, first + length)}
            self._are_free(event, slots, writes)
            writes.moves[message.ticket] = set(slots)
        elif isinstance(message, Resume):
            writes.resumed(message)
        elif isinstance(message, Discard):
            for number in message.sequence:
                writes.parked.pop(number, None)
        elif isinstance(message, Close):
            writes.close(message.sequence)

    def _writes_of(self, event: Delivery) -> _Writes:
        return self._written.setdefault(event.to, _Writes())

    def _are_free(self, event: Delivery, slots: dict[int, int], writes: _Writes) -> None:
        if holder := writes.holder(slots):
            raise self.fail(f"{holder}, and given to another by {event}")


def _slots_of(step: Step) -> dict[int, int]:
    """The sequence of each slot that the step's rows write."""
    extents = zip(step.extent_row, step.extent_start, step.extent_length, strict=True)
    return {slot: step.sequence[row] for row, first, length in extents for slot in range(first, first + length)}
