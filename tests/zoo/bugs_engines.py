"""Bugs to plant in copies between engines and in changes of layers, hunted in restless runs."""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Effect, Send
from dunlin.messages.engine import Remap
from dunlin.messages.group import PeerRoom
from dunlin.messages.types import I64, RemapPhase
from services.instance.engine.layer_changes import LayerChanges
from services.instance.migration.outgoing import OutgoingMigration
from services.instance.migration.peer_copies import PeerCopies, _part
from services.instance.scheduling.step_ledger import StepLedger
from tests.zoo.plant import Bug, skip, swap

ANY = ("I6", "I7", "I8", "I12", "I1", "core")
"""What a wrong slot may break, whichever is looked at first."""


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
        "issued-kv-copied-to-a-peer",
        "KV that outstanding rows are to write is copied to another engine",
        ANY,
        (swap(PeerCopies._write, _copy_what_is_issued),),
        restless=True,
        seed=40525,
    ),
    Bug(
        "copies-into-the-first-slots",
        "every span goes into the first slots of the room",
        ANY,
        (swap(_part, _from_the_first_slot),),
        restless=True,
        seed=300535,
    ),
    Bug(
        "kv-of-dropped-layers-given-up",
        "the KV of dropped layers is released though sequences need it",
        ANY,
        (swap(LayerChanges._give_up_kv, lambda original, self: True),),
        restless=True,
        seed=205,
    ),
    Bug(
        "parked-rows-of-dropped-layers",
        "layers go in which rows are parked",
        ANY,
        (skip(StepLedger.discard, list, called_by=LayerChanges._go_on),),
        restless=True,
        seed=40557,
    ),
    Bug(
        "layers-not-restored",
        "layers that no group lacks for long stay away",
        ("I5", "I12"),
        (skip(LayerChanges._restore_later, list),),
        restless=True,
        seed=205,
    ),
    Bug(
        "layout-named-twice",
        "a second change of layers has the version of the first",
        ("I12", "I5", *ANY),
        (swap(LayerChanges._send, _without_layout),),
        restless=True,
        seed=300563,
    ),
)
