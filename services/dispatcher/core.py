"""Places requests and owns them: prompt, tokens so far and attempt, until the last token is delivered.

A router over the journal (what is), the fleet (who could), the placement (who shall), the fences (who must not any
more) and the admission (what is taken at all). Knows no text, no tensor and no clock.
"""

from collections.abc import Sequence

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.handlers import handlers_of, handles
from dunlin.messages.door import CancelById, CancelResult, Quotas, Rejected, Rejection, Submit, Withdraw
from dunlin.messages.fleet import DispatcherReport, FleetView
from dunlin.messages.membership import MemberDown, MembersReset, MemberUp
from dunlin.messages.types import Finish
from dunlin.policies.dispatch import ORDERS, POLICIES
from dunlin.reporting import Heartbeat
from services.dispatcher.admission import Admission
from services.dispatcher.adoption import Adoption
from services.dispatcher.affinity import Affinity
from services.dispatcher.attempts import Attempts
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.directory import Directory
from services.dispatcher.endings import Endings, Totals
from services.dispatcher.fences import Fences
from services.dispatcher.fleet import Fleet
from services.dispatcher.joining import Joining
from services.dispatcher.journal import Journal
from services.dispatcher.moves import Moves
from services.dispatcher.placement import Placement
from services.dispatcher.quotas import TenantQuotas
from services.dispatcher.replays import Replays
from services.dispatcher.telling import Telling
from services.dispatcher.timers import AbandonedDue, DeadlineDue, DroughtOver


class DispatcherCore:
    """The decisions of one dispatcher."""

    def __init__(self, address: Address, config: DispatcherConfig) -> None:
        self.address = address
        self.journal = Journal(address.incarnation)
        placement, keep = config.placement, config.idempotency
        self.fleet = Fleet(placement.max_waiting_per_instance, placement.view_lag_s, ORDERS[placement.policy])
        self.directory = Directory()
        self.totals = Totals()
        self._outage, self._idempotency = config.outage, keep
        self._fences = Fences()
        self._admission = Admission(config.admission, config.max_positions)
        self._affinity = Affinity()
        self._placement = Placement(self.journal, self.fleet, self._affinity, POLICIES[placement.policy])
        self._telling = Telling()
        replays = Replays(keep.replay_s, keep.max_replays, keep.max_replay_tokens)
        self._endings = Endings(
            self.journal,
            self.fleet,
            self._fences,
            self._admission,
            self.totals,
            replays,
            self._telling,
            placement.max_lost_attempts,
        )
        self._moves = Moves(self.journal, self.fleet, self._fences, self._placement, self.totals)
        attempts = Attempts(
            self.journal,
            self.fleet,
            self._fences,
            self._endings,
            self.totals,
            self._telling,
            placement.refusal_pause_s,
            self._moves,
            self._affinity,
        )
        self._joining = Joining(self.journal, self._endings, replays)
        self._adoption = Adoption(self.journal, self.fleet, self._fences, self._endings, self.totals, config.adoption)
        self._heartbeat = Heartbeat(self.report, config.reports.interval_s)
        self._handlers = handlers_of(self, attempts, self._moves, self._adoption, self._endings, self._heartbeat)

    @property
    def quotas(self) -> TenantQuotas:
        """What each tenant has used."""
        return self._admission.quotas

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return []
        effects = handler(now_s, sender, message)
        if self.journal.queued:
            effects += self._settle(now_s)
        return effects

    def report(self) -> DispatcherReport:
        """What this dispatcher says of itself."""
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
        )

    # --- clients ---

    @handles
    def _on_submit(self, now_s: float, sender: Address, submit: Submit) -> list[Effect]:
        effects = self._watch_drought(now_s)
        if self.journal.of_client(sender) is not None:
            refusal: Rejected | None = Rejected(Rejection.INVALID, "this client address has a request already")
        else:
            is_known, joined = self._joining.join(now_s, sender, submit)
            effects += joined
            if is_known:
                return effects
            limit = self.fleet.limit_of_all([])
            submit = self._admission.bounded(submit, limit)
            refusal = self._admission.refusal(submit, self.journal.queued, limit, now_s, self.fleet.waiting)
        if refusal is not None:
            return [*effects, *self._endings.reject(now_s, sender, submit, refusal)]
        return effects + self._open(now_s, sender, submit)

    def _open(self, now_s: float, sender: Address, submit: Submit) -> list[Effect]:
        asks = self._adoption.is_needed(submit)
        request = self.journal.open(sender, submit, now_s, asks)
        self._admission.admitted(request.number, submit)
        effects: list[Effect] = []
        if submit.timeout_s is not None:
            effects.append(After(submit.timeout_s, DeadlineDue(request.number)))
        if asks:
            return effects + self._adoption.ask(request)
        return [*effects, self._telling.admitted(request, self.journal.queued, self.fleet.placeable_count)]

    @handles
    def _on_withdraw(self, now_s: float, sender: Address, message: Withdraw) -> list[Effect]:
        request = self.journal.of_client(sender)
        if request is None:
            return []
        if message.finish is Finish.CANCELLED:
            self.journal.leave(sender)
            if request.readers:
                return []
            if request.submit.idempotency:
                return [After(self._idempotency.grace_s, AbandonedDue(request.number, request.absence))]
        cause = "a stop string came" if message.finish is Finish.STOP else "the client is gone"
        return self._endings.stop(now_s, request, message.finish, cause)

    @handles
    def _on_abandoned_due(self, now_s: float, sender: Address, message: AbandonedDue) -> list[Effect]:
        request = self.journal.get(message.request)
        if request is None or request.readers or request.absence != message.absence:
            return []
        text = f"no client came back for it within {self._idempotency.grace_s:g} s"
        return self._endings.stop(now_s, request, Finish.CANCELLED, text)

    @handles
    def _on_cancel_by_id(self, now_s: float, sender: Address, message: CancelById) -> list[Effect]:
        request = self.journal.of_key(message.request)
        if request is not None and message.tenant not in (None, request.submit.tenant):
            request = None  # another tenant's: not even that there is one is told
        answer = Send(sender, CancelResult(message.request, request is not None))
        if request is None:
            return [answer]
        return [*self._endings.tell(now_s, request, Finish.CANCELLED, "cancelled by its id"), answer]

    @handles
    def _on_quotas(self, now_s: float, sender: Address, message: Quotas) -> list[Effect]:
        self._admission.quotas.take(message, now_s)
        return []

    @handles
    def _on_deadline_due(self, now_s: float, sender: Address, message: DeadlineDue) -> list[Effect]:
        request = self.journal.get(message.request)
        if request is None:
            return []
        of = f" of {request.max_tokens}" if request.max_tokens else ""
        text = f"{request.submit.timeout_s:g} s are over: {request.generated}{of} tokens were generated"
        return self._endings.tell(now_s, request, Finish.DEADLINE, text)

    # --- the fleet ---

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        if sender.role == "instance":
            self.fleet.join(sender)
            return [*self._adoption.joined(sender), *self._watch_drought(now_s)]
        if sender.role == "monitor":
            return self._heartbeat.joined(now_s, sender)
        return self._watch_drought(now_s)

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        if sender.role == "client":
            return self._on_withdraw(now_s, sender, Withdraw())
        self._heartbeat.gone(sender)
        self.fleet.forget_monitor(sender)
        self.fleet.leave(sender)
        self._fences.forget(sender)
        self._affinity.forget(sender)
        effects: list[Effect] = []
        for request in self.journal.held_by(sender):
            effects += self._endings.lost(now_s, request, f"lost: {message.reason or 'the stream ended'}")
        return effects + self._adoption.gone(sender) + self._watch_drought(now_s)

    @handles
    def _on_view(self, now_s: float, sender: Address, view: FleetView) -> list[Effect]:
        effects: list[Effect] = []
        for member in view.members:
            if not member.ready:
                self._affinity.forget(member.address)
        for suspect in self.fleet.take(sender, view, now_s):
            for request in self.journal.held_by(suspect):
                effects += self._fences.cancel(suspect, request.number, request.attempt, "the instance is suspect")
                effects += self._endings.lost(now_s, request, "suspect: no sign of progress")
        return effects + self._adoption.look() + self._watch_drought(now_s)

    @handles
    def _on_membership(
        self, now_s: float, sender: Address, message: MembersReset | MemberUp | MemberDown
    ) -> list[Effect]:
        self.directory.take(message)
        return []

    def _watch_drought(self, now_s: float) -> list[Effect]:
        if not self._admission.rain(self.fleet.placeable_count > 0, now_s):
            return []
        return [After(self._outage.give_up_after_s, DroughtOver(self._admission.droughts))]

    @handles
    def _on_drought_over(self, now_s: float, sender: Address, message: DroughtOver) -> list[Effect]:
        if not self._admission.is_drought(message.drought):
            return []
        effects: list[Effect] = [After(self._outage.give_up_after_s, message)]
        text = f"no instance has been able to serve for {self._outage.give_up_after_s:g} s or more"
        for request in self.journal.waiting(self.journal.queued):
            effects += self._endings.tell(now_s, request, Finish.ERROR, text)
        return effects

    # --- what happens to a request ---

    def _settle(self, now_s: float) -> list[Effect]:
        effects = self._moves.homeward()
        placed, hopeless = self._placement.settle(now_s)
        effects += placed
        for request in hopeless:
            text = f"{request.longest} tokens are more than any instance can hold"
            effects += self._endings.tell(now_s, request, Finish.ERROR, text)
        return effects
