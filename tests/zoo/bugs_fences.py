"""Bugs to plant in fences between lives, in quarantine and in the contract with the engine, hunted in restless runs.

Where a second fence covers the mistake, the bug drops both.
"""

from collections.abc import Callable

from dunlin.effects import Effect, Send
from dunlin.messages.engine import Interrupt
from dunlin.messages.group import Release
from services.instance.engine.client import EngineClient
from services.instance.engine.layer_changes import LayerChanges
from services.instance.migration.migrate_in import IncomingMigration, MigrateIn
from services.instance.migration.migrate_out import MigrateOut
from services.instance.migration.outgoing import OutgoingMigration
from services.instance.scheduling.step_ledger import StepLedger
from simulator.engine.stepping.step_runner import SimulatedStepRunner
from tests.zoo.plant import Bug, swap

ANY = ("I6", "I7", "I8", "I12", "I1", "core")
"""What a wrong slot may break, whichever is looked at first."""
_UNANSWERED: Callable[[StepLedger], int] = vars(StepLedger)["unanswered"].fget
_MAY_COMPUTE: Callable[[LayerChanges], bool] = vars(LayerChanges)["may_compute"].fget


def _count_from_one(original: Callable[[StepLedger], None], self: StepLedger) -> None:
    original(self)
    self._last_step = self._last_ticket = 0


def _release_at_once(original: object, self: MigrateOut, migration: OutgoingMigration) -> list[Effect]:
    migration.copy_ticket = 0
    return [Send(migration.target, Release(migration.handle))] if migration.handle else []


def _cancel_in_use(
    original: Callable[[MigrateIn, IncomingMigration], list[Effect]], self: MigrateIn, migration: IncomingMigration
) -> list[Effect]:
    migration.moving, migration.is_checking, migration.may_write = None, False, False
    return original(self, migration)


def _with_the_parked(original: Callable[[StepLedger], int], self: StepLedger) -> int:
    return original(self) + len(self._parked)


def _forget_the_second(
    original: Callable[[SimulatedStepRunner, float, Interrupt], list[Effect]],
    self: SimulatedStepRunner,
    now_s: float,
    message: Interrupt,
) -> list[Effect]:
    return original(self, now_s, message) if not self._interrupts else []


BUGS = (
    Bug(
        "late-answers-count",
        "what a dead engine said last is taken for the next one's, whose steps are numbered anew",
        ("I9", "I5", *ANY),
        (swap(EngineClient.is_stale, lambda original, self, engine: False), swap(StepLedger.clear, _count_from_one)),
        restless=True,
        seed=116,
    ),
    Bug(
        "room-released-beside-a-copy",
        "the target's slots are given back while the own engine still writes them",
        ("I8", *ANY),
        (swap(MigrateOut._release, _release_at_once),),
        restless=True,
        seed=18,
    ),
    Bug(
        "quarantine-of-slots-skipped",
        "an arrival that is given up frees slots that a copy, or the source's engine, may still write",
        ("I8", *ANY),
        (swap(MigrateIn._cancel, _cancel_in_use),),
        restless=True,
        seed=50601,
    ),
    Bug(
        "steps-of-layers-that-go",
        "steps are composed while layers are dropped",
        ("I5", *ANY),
        (swap(_MAY_COMPUTE, lambda original, self: self.is_whole),),
        restless=True,
        seed=51185,
    ),
    Bug(
        "parked-row-awaited",
        "a parked row counts as outstanding, and its engine as stuck",
        ("I9", "I12"),
        (swap(_UNANSWERED, _with_the_parked),),
        restless=True,
        seed=100646,
    ),
    Bug(
        "second-interrupt-unanswered",
        "of two interrupts before one safepoint the engine answers the first",
        ("I12", "I9"),
        (swap(SimulatedStepRunner.interrupt, _forget_the_second),),
        restless=True,
        seed=1,
    ),
)
