"""The dispatcher's core: owns each admitted request (prompt, generated tokens, attempt) until its last token is sent.

`receive` routes each message to the part that handles it: `admission` (which requests are admitted), `requests` (the
journal of requests, the fences of old attempts), `placement` (which instance gets a request) and `lifecycle` (what
instances report of their attempts, completion, migration, adoption). Holds no text, no tensor and no clock.
"""

from collections.abc import Sequence

from dunlin.cores.handlers import handlers_of, handles
from dunlin.cores.reporting import Heartbeat
from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.door import Abort, CancelById, CancelResult, Quotas, RejectionCode, Submit, SubmitRejected
from dunlin.messages.fleet import DispatcherReport, FleetView
from dunlin.messages.membership import MemberDown, MembersReset, MemberUp
from dunlin.messages.types import FinishReason
from dunlin.policies.dispatch import CANDIDATE_ORDERS
from services.dispatcher.admission.controller import AdmissionController
from services.dispatcher.admission.quotas import TenantQuotas
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.lifecycle.adoption import RequestAdoption
from services.dispatcher.lifecycle.attempts import AttemptEvents
from services.dispatcher.lifecycle.completion import RequestCompletion, RequestTotals
from services.dispatcher.lifecycle.deadlines import ReaderDeadlines
from services.dispatcher.lifecycle.events import LifecycleEvents
from services.dispatcher.lifecycle.joining import RequestJoins
from services.dispatcher.lifecycle.late_crashes import LateCrashes
from services.dispatcher.lifecycle.long_requests import LongRequestPlacer
from services.dispatcher.lifecycle.migrations import Migrations
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.placement.group_capacity import GroupCapacity
from services.dispatcher.placement.monitor_directory import MonitorDirectory
from services.dispatcher.placement.placer import RequestPlacer
from services.dispatcher.placement.prefix_affinity import PrefixAffinity
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.queue import fresh_order
from services.dispatcher.requests.replay_cache import ReplayCache
from services.dispatcher.requests.request_rise import RequestRise
from services.dispatcher.requests.timers import AbandonTimeout, OutageTimeout


class DispatcherCore:
    """Routes messages to the parts and dispatches waiting requests after each message.

    `journal`, `fleet`, `directory` and `totals` are public for the doors, the reports and the tests.
    """

    def __init__(self, address: Address, config: DispatcherConfig) -> None:
        self.address = address
        placement, keep = config.placement, config.idempotency
        self.journal = Journal(address.incarnation, fresh_order(placement.queue_policy, placement.long_tokens))
        self.fleet = FleetState(
            placement.max_waiting_per_instance, placement.view_lag_s, CANDIDATE_ORDERS[placement.policy]
        )
        self._capacity = GroupCapacity(self.fleet, placement, config.outage.give_up_after_s)
        if self._capacity.is_used:
            self.journal.needs_group = self._capacity.needs_group
        self.directory = MonitorDirectory()
        self.totals = RequestTotals()
        self._outage, self._idempotency = config.outage, keep
        self._fences = AttemptFences()
        self._admission = AdmissionController(config.admission, config.max_positions, config.objectives)
        self._affinity = PrefixAffinity()
        self._placement = RequestPlacer(self.journal, self.fleet, self._affinity, placement)
        self._events = LifecycleEvents()
        self._request_rise = RequestRise(self.journal, config.starvation)
        replays = ReplayCache(keep.replay_s, keep.max_replays, keep.max_replay_tokens)
        self._completion = RequestCompletion(
            self.journal,
            self.fleet,
            self._fences,
            self._admission,
            self.totals,
            replays,
            self._events,
            placement.max_lost_attempts,
        )
        self._migrations = Migrations(self.journal, self.fleet, self._fences, self._placement, self.totals)
        attempts = AttemptEvents(
            self.journal,
            self.fleet,
            self._fences,
            self._completion,
            self.totals,
            self._events,
            placement.refusal_pause_s,
            self._migrations,
            self._affinity,
        )
        self._deadlines = ReaderDeadlines(self.journal, self._completion)
        self._joining = RequestJoins(self.journal, self._completion, replays, self._deadlines)
        self._adoption = RequestAdoption(
            self.journal, self.fleet, self._fences, self._completion, self.totals, config.adoption, self._admission
        )
        self._long = LongRequestPlacer(
            self.journal, self.fleet, self._capacity, self._placement, self._completion, self.totals, placement
        )
        self._heartbeat = Heartbeat(self.report, config.reports.interval_s)
        told = (attempts, LateCrashes(self.journal, self._completion, self.totals), self._migrations, self._adoption)
        self._handlers = handlers_of(self, *told, self._completion, self._deadlines, self._heartbeat, self._long)

    @property
    def quotas(self) -> TenantQuotas:
        """The tenants' token buckets and running requests."""
        return self._admission.quotas

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`. A message without a handler is ignored."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return []
        effects = handler(now_s, sender, message)
        if self.journal.queued:
            effects += self._dispatch_waiting(now_s)
        deferred = self.journal.deferred
        if deferred.entered or deferred.ended:
            effects += self._long.on_change(now_s)
        return effects

    def report(self) -> DispatcherReport:
        """The counters and gauges that go to the monitors with every heartbeat."""
        return DispatcherReport(
            queued=self.journal.queued,
            running=len(self.journal) - self.journal.queued,
            finished_total=self.totals.finished,
            failed_total=self.totals.failed,
            refused_total=self.totals.refused,
            cancelled_total=self.totals.cancelled,
            replaced_total=self.totals.replaced,
            tokens_total=self.totals.tokens,
            stale_total=self.totals.stale + self.fleet.stale_total,
            adopted_total=self._adoption.adopted_total,
            joined_total=self._joining.joined_total,
            risen_total=self._request_rise.risen_total,
        )

    # --- clients ---

    @handles
    def _on_submit(self, now_s: float, sender: Address, submit: Submit) -> list[Effect]:
        effects = self._watch_outage(now_s)
        if self.journal.by_reader(sender) is not None:
            refusal: SubmitRejected | None = SubmitRejected(
                RejectionCode.INVALID, "this client address has a request already"
            )
        else:
            is_known, joined = self._joining.join(now_s, sender, submit)
            effects += joined
            if is_known:
                return effects
            submit = self._admission.cap_max_tokens(submit, self._capacity.max_length(now_s))
            limit = self._capacity.longest_lately(now_s)
            queued, waiting = self.journal.queued_against(submit), self.fleet.waiting_of(submit.request_class)
            queued += self.journal.adopting if submit.may_be_held else 0
            refusal = self._capacity.refusal(submit) or self._admission.refusal(submit, queued, limit, now_s, waiting)
        if refusal is not None:
            return [*effects, *self._completion.reject(now_s, sender, submit, refusal)]
        return effects + self._open(now_s, sender, submit)

    def _open(self, now_s: float, sender: Address, submit: Submit) -> list[Effect]:
        may_be_held = submit.may_be_held
        request = self.journal.add(sender, submit, now_s, may_be_held)
        self._admission.on_admitted(request.number, submit)
        effects = self._deadlines.begin(request, sender, submit)
        if may_be_held:
            return effects + self._adoption.query_instances(now_s, request)
        return [*effects, self._events.admitted(request, self.journal.queued, self.fleet.serving_count)]

    @handles
    def _on_abort(self, now_s: float, sender: Address, message: Abort) -> list[Effect]:
        request = self.journal.by_reader(sender)
        if request is None:
            return []
        if message.finish is FinishReason.CANCELLED or len(request.readers) > 1:  # each has stop strings of its own
            self.journal.remove_reader(sender)
            if request.readers:
                return []
            if request.submit.idempotency:
                return [After(self._idempotency.grace_s, AbandonTimeout(request.number, request.reader_absence))]
        cause = "a stop string came" if message.finish is FinishReason.STOP else "the client is gone"
        return self._completion.abort(now_s, request, message.finish, cause)

    @handles
    def _on_abandon_timeout(self, now_s: float, sender: Address, message: AbandonTimeout) -> list[Effect]:
        request = self.journal.get(message.request)
        if request is None or request.readers or request.reader_absence != message.reader_absence:
            return []
        text = f"no client came back for it within {self._idempotency.grace_s:g} s"
        return self._completion.abort(now_s, request, FinishReason.CANCELLED, text)

    @handles
    def _on_cancel_by_id(self, now_s: float, sender: Address, message: CancelById) -> list[Effect]:
        request = self.journal.by_key(message.request)
        if request is not None and message.tenant not in (None, request.submit.tenant):
            request = None  # of another tenant, which must not learn that the id exists
        answer = Send(sender, CancelResult(message.request, request is not None))
        if request is None:
            return [answer]
        return [
            *self._completion.abort_and_notify(now_s, request, FinishReason.CANCELLED, "cancelled by its id"),
            answer,
        ]

    @handles
    def _on_quotas(self, now_s: float, sender: Address, message: Quotas) -> list[Effect]:
        self._admission.quotas.replace(message, now_s)
        self.journal.shares.set_weights({quota.tenant: quota.weight for quota in message.tenants})
        return []

    # --- the fleet ---

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        if sender.role == "instance":
            self.fleet.add_instance(sender)
            cancels = self._fences.on_instance_joined(sender)
            return [*cancels, *self._adoption.on_instance_joined(sender), *self._watch_outage(now_s)]
        if sender.role == "monitor":
            self.fleet.add_monitor(sender)
            return self._heartbeat.joined(now_s, sender)
        return self._watch_outage(now_s)

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        """A stream ended: abort the client's request, or queue the instance's requests again, ahead of new ones."""
        if sender.role == "client":
            return self._on_abort(now_s, sender, Abort())
        if sender.role == "global_manager":
            return self._long.on_manager_gone(now_s, sender)
        self._heartbeat.gone(sender)
        self.fleet.forget_monitor(sender)
        self.fleet.remove_instance(sender)
        self._affinity.forget_instance(sender)
        effects: list[Effect] = []
        for request in self.journal.ordered_requests_at(sender):
            effects += self._completion.requeue_lost(now_s, request, f"lost: {message.reason or 'the stream ended'}")
        return effects + self._adoption.on_instance_gone(sender) + self._watch_outage(now_s)

    @handles
    def _on_view(self, now_s: float, sender: Address, view: FleetView) -> list[Effect]:
        """Take a FleetView in: queue the requests of each instance that became suspect again, as if it had died."""
        effects: list[Effect] = []
        suspects = self.fleet.apply_view(sender, view, now_s)
        if self.fleet.view_source == (sender, view.version):  # an old view says nothing of a cache
            for member in view.members:
                if not member.ready:
                    self._affinity.forget_instance(member.address)
        for suspect in suspects:
            for request in self.journal.ordered_requests_at(suspect):
                effects += self._fences.cancel(suspect, request.number, request.attempt, "the instance is suspect")
                effects += self._completion.requeue_lost(now_s, request, "suspect: no sign of progress")
        return effects + self._long.on_view(now_s) + self._adoption.recheck() + self._watch_outage(now_s)

    @handles
    def _on_membership(
        self, now_s: float, sender: Address, message: MembersReset | MemberUp | MemberDown
    ) -> list[Effect]:
        self.directory.apply(message)
        return []

    def _watch_outage(self, now_s: float) -> list[Effect]:
        if not self._admission.update_outage(self.fleet.serving_count > 0, now_s):
            return []
        return [After(self._outage.give_up_after_s, OutageTimeout(self._admission.outages))]

    @handles
    def _on_outage_timeout(self, now_s: float, sender: Address, message: OutageTimeout) -> list[Effect]:
        if not self._admission.is_outage(message.outage):
            return []
        effects: list[Effect] = [After(self._outage.give_up_after_s, message)]
        text = f"no instance has been able to serve for {self._outage.give_up_after_s:g} s or more"
        for request in self.journal.all_waiting():
            effects += self._completion.abort_and_notify(now_s, request, FinishReason.ERROR, text)
        return effects

    # --- waiting requests ---

    def _dispatch_waiting(self, now_s: float) -> list[Effect]:
        effects = self._migrations.return_to_source(now_s)
        for request, why in self._request_rise.raise_starved(now_s):
            effects.append(self._events.risen(request, why))
        dispatched, oversized = self._placement.dispatch_waiting(now_s)
        effects += dispatched
        for request in oversized:
            if self._capacity.is_used:
                self.journal.defer(request)
                continue
            if self._capacity.may_fit_soon(request, now_s):
                continue
            finish, text = FinishReason.TOO_LONG, f"{request.max_length} tokens are more than any instance can hold"
            if request.lacks_adapter:
                finish, text = FinishReason.ERROR, "no instance that could hold it has its model's adapter"
            effects += self._completion.abort_and_notify(now_s, request, finish, text)
        return effects
