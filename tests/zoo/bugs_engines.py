"""Bugs to plant in fences, quarantine, copies between engines and changes of layers, hunted in restless runs."""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Effect, Send
from dunlin.messages.engine import Remap
from dunlin.messages.group import PeerRoom, Release
from dunlin.messages.types import I64, RemapPhase
from services.instance.engine.client import EngineClient
from services.instance.engine.layer_changes import LayerChanges
from services.instance.engine.recovery import EngineRecovery
from services.instance.kv.slot_table import SlotTable
from services.instance.migration.migrate_in import MigrateIn
from services.instance.migration.migrate_out import MigrateOut
from services.instance.migration.outgoing import OutgoingMigration
from services.instance.migration.peer_copies import PeerCopies, _part
from services.instance.scheduling.step_ledger import StepLedger
from tests.zoo.plant import Bug, skip, swap

ANY = ("I6", "I7", "I8", "I12", "I1", "core")
"""What a wrong slot may break, whichever is looked at first."""


def _getter(kind: type[Any], name: str) -> Callable[..., Any]:
    """The function behind a property."""
    getter: Callable[..., Any] = vars(kind)[name].fget
    return getter


def _whatever_is_held(original: Callable[[LayerChanges], bool], self: LayerChanges) -> bool:
    return self._ready is not None


def _release_beside_the_copy(
    original: Callable[[MigrateOut, OutgoingMigration], list[Effect]], self: MigrateOut, migration: OutgoingMigration
) -> list[Effect]:
    return [Send(migration.target, Release(migration.handle))] if migration.handle else []


def _copy_what_is_issued(
    original: Callable[[PeerCopies, OutgoingMigration, PeerRoom, int, int], Effect],
    self: PeerCopies,
    migration: OutgoingMigration,
    room: PeerRoom,
    start: int,
    stop: int,
) -> Effect:
    issued = min(migration.sequence.issued, len(migration.sequence.tokens))
    return original(self, migration, room, start, max(stop, min(issued, sum(room.extent_length))))


def _from_the_first_slot(
    original: Callable[[PeerRoom, int, int], tuple[I64, I64]], room: PeerRoom, start: int, stop: int
) -> tuple[I64, I64]:
    return original(room, 0, stop - start)


def _without_layout(original: Callable[[LayerChanges, Any], Effect], self: LayerChanges, change: Any) -> Effect:
    sent = original(self, change)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Remap)
    self._layout -= change.next is RemapPhase.PREPARE
    return sent


BUGS = (
    Bug(
        "words-of-the-dead-engine",
        "what an engine of an earlier life said counts",
        ANY,
        (swap(EngineClient.is_stale, lambda original, self, engine: False),),
        restless=True,
        seed=551,
    ),
    Bug(
        "room-freed-while-written",
        "slots that a peer may write yet are given to others",
        ANY,
        (swap(MigrateIn._cancel, lambda original, self, migration: self._free(migration)),),
        restless=True,
    ),
    Bug(
        "room-released-beside-the-copy",
        "a room is released though a copy into it is under way",
        ANY,
        (swap(MigrateOut._release, _release_beside_the_copy),),
        restless=True,
    ),
    Bug(
        "issued-kv-copied-to-a-peer",
        "KV that outstanding rows are to write is copied to another engine",
        ANY,
        (swap(PeerCopies._write, _copy_what_is_issued),),
        restless=True,
    ),
    Bug(
        "copies-into-the-first-slots",
        "every span goes into the first slots of the room",
        ANY,
        (swap(_part, _from_the_first_slot),),
        restless=True,
    ),
    Bug(
        "steps-without-all-layers",
        "steps are composed while layers are missing",
        ANY,
        (swap(_getter(LayerChanges, "may_compute"), _whatever_is_held),),
        restless=True,
    ),
    Bug(
        "kv-of-dropped-layers-given-up",
        "the KV of dropped layers is released though sequences need it",
        ANY,
        (swap(LayerChanges._give_up_kv, lambda original, self: True),),
        restless=True,
        seed=576,
    ),
    Bug(
        "parked-rows-of-dropped-layers",
        "layers go in which rows are parked",
        ANY,
        (skip(StepLedger.discard, list, called_by=LayerChanges._go_on),),
        restless=True,
        seed=596,
    ),
    Bug(
        "layers-not-restored",
        "layers that no group lacks for long stay away",
        ("I5", "I12"),
        (skip(LayerChanges._restore_later, list),),
        restless=True,
        seed=600,
    ),
    Bug(
        "layout-named-twice",
        "a second change of layers has the version of the first",
        ("I12", "I5", *ANY),
        (swap(LayerChanges._send, _without_layout),),
        restless=True,
        seed=605,
    ),
    Bug(
        "kv-kept-beyond-the-capacity",
        "the next engine's slots are fewer, and what lay beyond counts",
        ANY,
        (skip(SlotTable.owners_beyond, dict, called_by=EngineRecovery._keeps_kv),),
        restless=True,
    ),
)
