"""Bugs that were planted by reading the cores alone, without a look at the watchers: a measure of what goes unnoticed.

They are no part of the zoo that the tests hunt, because some are not caught yet: `python -m tests.zoo.power --unseen`,
docs/measurements/2026-11-25-search.md. Any invariant may notice them.
"""

from collections.abc import Callable
from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.kv.prefix_hash import has_prefix
from dunlin.messages.dispatch import Returned
from dunlin.messages.group import Release
from dunlin.messages.plan import Drain, DrainDone, EvacuateDone, Undrain
from services.dispatcher.admission.controller import AdmissionController
from services.dispatcher.lifecycle.adoption import RequestAdoption
from services.dispatcher.lifecycle.attempts import AttemptEvents
from services.dispatcher.lifecycle.migrations import Migrations
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request
from services.global_manager.move_orders import MoveOrders
from services.global_manager.planner import GroupPlanner
from services.instance.host_cache_events import HostCacheEvents
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.tickets import Question
from services.instance.migration.evacuation import Evacuations
from services.instance.migration.kv_handoff import KvHandoffs
from services.instance.migration.migrate_in import MigrateIn
from services.instance.migration.migrate_out import MigrateOut
from services.instance.migration.outgoing import OutgoingMigration
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable
from services.kvstore.core import KvstoreCore
from services.kvstore.regions.catalog import RegionCatalog
from services.kvstore.transfer.outgoing import OutgoingCopies
from services.monitor.fleet_views import FleetViews
from tests.zoo.plant import Bug, Swap, skip, swap

EVERY = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "core")


def _last_reader_alone(original: object, self: Journal, request: Request, client: Address) -> None:
    request.readers[:] = [client]
    self._by_reader[client] = request


def _absence_uncounted(original: Callable[[Journal, Address], None], self: Journal, client: Address) -> None:
    request = self.by_reader(client)
    absences = request.reader_absence if request is not None else 0
    original(self, client)
    if request is not None:
        request.reader_absence = absences


def _same_attempt(original: Callable[[Journal, Request], None], self: Journal, request: Request) -> None:
    original(self, request)
    request.attempt -= 1


def _cancel_once(
    original: Callable[[AttemptFences, Address, int, int, str], list[Effect]],
    self: AttemptFences,
    instance: Address,
    number: int,
    attempt: int,
    cause: str,
) -> list[Effect]:
    return [] if (instance, number) in self._sent else original(self, instance, number, attempt, cause)


def _leave_source(original: object, self: Migrations, request: Request) -> list[Effect]:
    request.migration_source = None
    return []


def _suspicion_forgotten(
    original: Callable[[AttemptEvents, float, Address, Returned], list[Effect]],
    self: AttemptEvents,
    now_s: float,
    sender: Address,
    message: Returned,
) -> list[Effect]:
    return original(self, now_s, sender, replace(message, suspicion=0))


def _outage_stays(
    original: Callable[[AdmissionController, bool, float], bool],
    self: AdmissionController,
    can_serve: bool,
    now_s: float,
) -> bool:
    return False if can_serve else original(self, can_serve, now_s)


def _drains_for_ever(
    original: Callable[[Evacuations, float, Address, Drain | Undrain], list[Effect]],
    self: Evacuations,
    now_s: float,
    sender: Address,
    order: Drain | Undrain,
) -> list[Effect]:
    if isinstance(order, Drain):
        return original(self, now_s, sender, order)
    return [Send(sender, DrainDone(order.epoch, order.ticket, False, ""))]


def _still_cancelled(
    original: Callable[[SequenceLifecycle, Sequence], None], self: SequenceLifecycle, sequence: Sequence
) -> None:
    was_cancelled = sequence.is_restore_cancelled
    original(self, sequence)
    sequence.is_restore_cancelled = was_cancelled


def _questions_forgotten(
    original: Callable[[HostCacheClient, Address], list[Question]], self: HostCacheClient, kvstore: Address
) -> list[Question]:
    original(self, kvstore)
    return []


def _evacuation_stays_open(
    original: object, self: MoveOrders, now_s: float, sender: Address, message: EvacuateDone
) -> bool:
    return sender in self._open


def _handed_over_early(
    original: Callable[[MigrateOut, OutgoingMigration], list[Effect]], self: MigrateOut, migration: OutgoingMigration
) -> list[Effect]:
    ticket, migration.copy_ticket = migration.copy_ticket, 0
    effects = original(self, migration)
    migration.copy_ticket = migration.copy_ticket or ticket
    return effects


def _released_while_written(original: object, self: MigrateOut, migration: OutgoingMigration) -> list[Effect]:
    return [Send(migration.target, Release(migration.handle))] if migration.handle else []


def bug(name: str, what: str, *swaps: Swap) -> Bug:
    """A bug that any invariant may notice."""
    return Bug(name, what, EVERY, swaps)


BUGS = (
    bug(
        "last-reader-alone",
        "a second client of a request takes the first one's place",
        swap(Journal.add_reader, _last_reader_alone),
    ),
    bug(
        "absence-uncounted",
        "the times when a request's last reader left are not told apart",
        swap(Journal.remove_reader, _absence_uncounted),
    ),
    bug(
        "reclaimed-as-the-same-attempt",
        "a request that another dispatcher adopted is adopted back under its old attempt",
        swap(Journal.reclaim, _same_attempt),
    ),
    bug(
        "cancelled-once",
        "while an old attempt's cancellation is not answered, a newer attempt is not cancelled",
        swap(AttemptFences.cancel, _cancel_once),
    ),
    bug(
        "cancels-lost-with-streams",
        "cancellations are not repeated on a new stream",
        skip(AttemptFences.on_instance_joined, list),
    ),
    bug(
        "source-not-cancelled",
        "a migration's source is not told that the target runs the request",
        swap(Migrations.on_accepted, _leave_source),
    ),
    bug(
        "refusing-source-asked-again",
        "a source that refuses a request stays its migration source",
        skip(Migrations.on_refused, lambda: None),
    ),
    bug(
        "never-back-to-the-source",
        "a request that its target does not take is not given back to its source",
        skip(Migrations.return_to_source, list),
    ),
    bug(
        "load-stays-after-a-move",
        "a request that moves away still counts at its source",
        skip(FleetState.release, lambda: None, called_by=Migrations.on_ready),
    ),
    bug(
        "outage-never-ends",
        "a dispatcher that had no instance once goes on as if it had none",
        swap(AdmissionController.update_outage, _outage_stays),
    ),
    bug(
        "tokens-uncapped",
        "max_tokens is not bounded by the tenant's quota",
        swap(AdmissionController.cap_max_tokens, lambda original, self, submit, limit: submit),
    ),
    bug(
        "suspicion-forgotten",
        "what a request crashed at one instance is not told to the next",
        swap(AttemptEvents.on_returned, _suspicion_forgotten),
    ),
    bug(
        "refusal-pause-for-ever",
        "the end of a pause after a refusal is ignored",
        skip(AttemptEvents.on_pause_over, list),
    ),
    bug(
        "late-instances-not-asked",
        "an instance that joins while a request is looked for is not asked for it",
        skip(RequestAdoption.on_instance_joined, list),
    ),
    bug(
        "adoption-never-times-out",
        "a request waits for the answers of all instances for ever",
        skip(RequestAdoption.on_query_timeout, list),
    ),
    bug(
        "gone-instance-awaited",
        "an instance that is gone is still to answer an adoption query",
        skip(RequestAdoption.on_instance_gone, list),
    ),
    bug(
        "written-room-not-fenced",
        "the room of a source that is gone is kept for what its engine might still write",
        skip(MigrateIn.on_source_gone, list),
    ),
    bug(
        "reservation-for-ever",
        "a reservation that no attempt takes over is kept",
        skip(MigrateIn.on_timeout, list),
    ),
    bug(
        "arrival-of-other-tokens",
        "an attempt takes over KV without comparing its tokens",
        skip(has_prefix, lambda: True, called_by=MigrateIn.take_over),
    ),
    bug(
        "room-open-after-the-arrival",
        "the engine lets a peer write slots that a sequence has taken over",
        skip(MigrateIn.close_room, list),
    ),
    bug("undrain-ignored", "a drained instance takes no requests again", swap(Evacuations.drain, _drains_for_ever)),
    bug(
        "hand-off-awaited-for-ever",
        "a sequence that no decode instance takes is held at its prefill instance",
        skip(KvHandoffs.on_hold_expired, list),
    ),
    bug(
        "migration-never-times-out",
        "a migration whose target does not answer goes on for ever",
        skip(MigrateOut.on_timeout, list),
    ),
    bug(
        "released-while-written",
        "the target's room is released while the engine still copies into it",
        swap(MigrateOut._release, _released_while_written),
    ),
    bug(
        "handed-over-while-copied",
        "the next attempt is announced while a copy writes into its slots",
        swap(MigrateOut._announce_ready, _handed_over_early),
    ),
    bug(
        "revoked-regions-kept",
        "an instance goes on using regions that another attempt has claimed",
        skip(SequenceLifecycle.on_regions_revoked, list),
    ),
    bug(
        "lost-tier-s-regions-kept",
        "an instance counts on regions of a kvstore that is gone",
        skip(SequenceLifecycle.on_host_cache_lost, list),
    ),
    bug(
        "reserved-room-of-a-dead-engine",
        "room whose copy ended with the engine is not given back",
        skip(HostCacheClient.release_uncommitted, list, called_by=HostCacheClient.on_engine_lost),
    ),
    bug(
        "silent-kvstore-awaited",
        "a question that the kvstore does not answer stays open",
        skip(HostCacheEvents.on_timeout, list),
    ),
    bug(
        "questions-forgotten",
        "what was asked of a kvstore that is gone is never settled",
        swap(HostCacheClient.disconnect, _questions_forgotten),
    ),
    bug(
        "refused-step-counts",
        "the rows of a refused step count as sent",
        skip(StepLedger._roll_back, lambda: None, called_by=StepLedger.refuse),
    ),
    bug(
        "same-number-in-the-engine",
        "a preempted sequence keeps its number in the engine",
        skip(SequenceTable.renumber, lambda: None, called_by=SequenceLifecycle._release_slots),
    ),
    bug(
        "restore-cancelled-for-ever",
        "a sequence whose restore was cancelled once is never restored",
        swap(SequenceLifecycle._release_slots, _still_cancelled),
    ),
    bug(
        "claims-not-revoked",
        "the former writer of a claimed region is not told",
        skip(KvstoreCore._revoke, list),
    ),
    bug(
        "predecessor-s-room-kept",
        "room that a process of an earlier incarnation had reserved is never free",
        skip(KvstoreCore._process_ended, lambda: None, called_by=KvstoreCore._on_joined),
    ),
    bug(
        "copies-wait-for-the-gone",
        "copies to a kvstore that is gone do not end",
        skip(OutgoingCopies.on_peer_gone, list),
    ),
    bug(
        "room-of-the-ended-kept",
        "room that a process which surely ended had reserved stays reserved",
        skip(RegionCatalog.free_unwritten, lambda: None),
    ),
    bug(
        "gone-instances-published",
        "an instance that is gone stays in the monitor's view",
        skip(FleetViews.remove, lambda: None),
    ),
    bug(
        "evacuation-open-for-ever",
        "a manager forgets no move that was answered",
        swap(MoveOrders.on_evacuate_done, _evacuation_stays_open),
    ),
    bug(
        "moves-lost-with-streams",
        "orders to move are not repeated on a new stream",
        skip(MoveOrders.on_instance_joined, list),
    ),
    bug(
        "orders-lost-with-streams",
        "an instance's order is not repeated on a new stream",
        skip(GroupPlanner.order_again, list),
    ),
    bug(
        "open-orders-not-repeated",
        "orders that are not done are not given again",
        skip(GroupPlanner.on_retry_due, list),
    ),
)
