"""Adoption of a request that began at another dispatcher: the instance that runs it is found and streams to this one.

An adoption query (`Adopt`) goes to every instance. If none runs the request, it is rebuilt from the tokens that its
client has and queued like any other. Knows no policy; the instances decide whether the client's tokens are the
request's.
"""

from dataclasses import dataclass, field

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Adopt, Adopted, AdoptedElsewhere, NotHeld
from dunlin.messages.door import Admitted, Delta
from dunlin.messages.types import Figure, FinishReason, Why
from services.dispatcher.admission.controller import AdmissionController
from services.dispatcher.config import DispatcherAdoptionConfig
from services.dispatcher.lifecycle.completion import RequestCompletion, RequestTotals
from services.dispatcher.lifecycle.joining import idempotency_conflict
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request, RequestState
from services.dispatcher.requests.timers import AdoptionQueryAnswered, AdoptionQueryRetry, AdoptionQueryTimeout

READOPT_AFTER_S = 1.0
"""Seconds until a request that another dispatcher adopted is adopted back, if it has readers at both."""

NOT_HELD_TEXT = "no instance runs it: it continues from the tokens that its client has"


@dataclass(slots=True)
class AdoptionQuery:
    """The command sent to every instance for one request, and the instances that answered or are gone."""

    command: Adopt
    answered: dict[Address, None] = field(default_factory=dict)


class RequestAdoption:
    """Owns the open queries by request number. `adopted_total` counts the requests that were found at an instance.

    `patience_s` is how many seconds a query waits for answers.
    """

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        fences: AttemptFences,
        completion: RequestCompletion,
        totals: RequestTotals,
        config: DispatcherAdoptionConfig,
        admission: AdmissionController,
    ) -> None:
        self.adopted_total = 0
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._completion = completion
        self._totals = totals
        self._config = config
        self._admission = admission
        self._queries: dict[int, AdoptionQuery] = {}

    def query_instances(self, now_s: float, request: Request) -> list[Effect]:
        """Ask every connected instance whether it runs the request; instances that join meanwhile are asked then."""
        submit, length = request.submit, len(request.tokens)
        start = prefix_hash.chain_root(submit.tenant, "", adapter=submit.adapter)
        chain = prefix_hash.chain_of(start, request.tokens, length)
        adopt = Adopt(
            request.number,
            request.attempt,
            request.key if request.adopted_elsewhere else submit.key,
            submit.tenant,
            length,
            request.generated_tokens,
            chain,
            submit.idempotency,
            submit.digest,
            scored=request.scored,
        )
        self._queries[request.number] = AdoptionQuery(adopt)
        queries: list[Effect] = [Send(instance, adopt) for instance in self._fleet.connected]
        return [
            *queries,
            After(self._config.ask_timeout_s, AdoptionQueryTimeout(request.number, request.attempt)),
            *self._recheck(now_s, request.number),
        ]

    def on_instance_joined(self, instance: Address) -> list[Effect]:
        """Send the open queries to an instance whose stream has just opened: its answers are awaited, again if it was
        gone.
        """
        for query in self._queries.values():
            query.answered.pop(instance, None)
        return [Send(instance, query.command) for query in self._queries.values()]

    def on_instance_gone(self, instance: Address) -> list[Effect]:
        """The instance will not answer any query."""
        for query in self._queries.values():
            query.answered[instance] = None
        return self.recheck()

    def recheck(self) -> list[Effect]:
        """The fleet changed: rebuild the requests that no instance is left to hold. Each in an event of its own, which
        dispatches it: together they would fill the queue, and the last ones be refused though there is room.
        """
        return [After(0.0, AdoptionQueryAnswered(number)) for number in self._queries if self._is_answered(number)]

    @handles
    def on_query_answered(self, now_s: float, sender: Address, message: AdoptionQueryAnswered) -> list[Effect]:
        """Rebuild the request, unless an instance joined meanwhile."""
        return self._recheck(now_s, message.request) if message.request in self._queries else []

    @handles
    def on_adopted(self, now_s: float, sender: Address, message: Adopted) -> list[Effect]:
        """An instance runs it: deliver the tokens that the client lacks. A second instance's attempt is cancelled."""
        request = self._queried(message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            if message.finish is not FinishReason.RUNNING:
                return []
            return self._fences.cancel(sender, message.request, message.attempt, "it runs elsewhere")
        del self._queries[request.number]
        self._journal.adopt(request, sender, message.key)
        request.max_tokens = message.max_tokens
        request.suspicion, request.trial_stop = message.suspicion, message.trial_stop
        request.tokens.extend(message.tokens)
        self.adopted_total += 1
        self._totals.tokens += len(message.tokens)
        delta = Delta(message.tokens, finish=message.finish)
        effects = self._notify_admitted(request)
        if message.tokens or message.finish is not FinishReason.RUNNING:
            effects += [Send(reader, delta) for reader in request.readers]
        if message.finish is not FinishReason.RUNNING:
            effects += self._completion.complete(now_s, request, message.finish, message.finish.name.lower())
        return effects

    @handles
    def on_not_held(self, now_s: float, sender: Address, message: NotHeld) -> list[Effect]:
        """The instance does not run it; `conflict`: it runs another request of the same idempotency key."""
        request = self._queried(message.request, message.attempt)
        if request is None:
            return []
        if message.conflict:
            del self._queries[request.number]
            return self._completion.reject_unheld(now_s, request, idempotency_conflict(request.submit))
        self._queries[request.number].answered[sender] = None
        return self._recheck(now_s, request.number)

    @handles
    def on_query_timeout(self, now_s: float, sender: Address, message: AdoptionQueryTimeout) -> list[Effect]:
        """The query has lasted `ask_s`: rebuild the request without the answers that are missing."""
        query = self._queries.get(message.request)
        is_open = query is not None and query.command.attempt == message.attempt
        return self._end_query(now_s, message.request) if is_open else []

    @handles
    def on_adopted_elsewhere(self, now_s: float, sender: Address, message: AdoptedElsewhere) -> list[Effect]:
        """Another dispatcher adopted it: its client has moved there, or clients read it at both dispatchers.

        If readers are left here, it is adopted back after `READOPT_AFTER_S`, so that the readers at both get all of it.
        Without that, a dispatcher that was suspended and then adopted the request for a client that has long moved on
        would fail the clients that read it here.
        """
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return []
        if not request.readers:
            return self._completion.abort(now_s, request, FinishReason.CANCELLED, f"{message.by} has adopted it")
        self._fleet.release(sender, request.number)
        self._journal.reclaim(request)
        return [After(READOPT_AFTER_S, AdoptionQueryRetry(request.number, request.attempt))]

    @handles
    def on_query_retry(self, now_s: float, sender: Address, message: AdoptionQueryRetry) -> list[Effect]:
        """The other dispatcher has had it for `READOPT_AFTER_S`: adopt it back."""
        request = self._journal.get(message.request)
        if request is None or request.state is not RequestState.ADOPTING or request.attempt != message.attempt:
            return []
        return self.query_instances(now_s, request)

    def _queried(self, number: int, attempt: int) -> Request | None:
        query, request = self._queries.get(number), self._journal.get(number)
        return request if request is not None and query is not None and query.command.attempt == attempt else None

    def _recheck(self, now_s: float, number: int) -> list[Effect]:
        """Rebuild the request once every trusted instance has answered that it does not run it."""
        return self._end_query(now_s, number) if self._is_answered(number) else []

    def _is_answered(self, number: int) -> bool:
        """Whether no answer is awaited any more; also where the request has ended, for its clients left."""
        answered = self._queries[number].answered
        is_told = self._fleet.serving_count > 0 and all(instance in answered for instance in self._fleet.trusted)
        return is_told or self._journal.get(number) is None

    def _end_query(self, now_s: float, number: int) -> list[Effect]:
        del self._queries[number]
        request = self._journal.get(number)
        return self._rebuild(now_s, request) if request is not None else []

    def _rebuild(self, now_s: float, request: Request) -> list[Effect]:
        if not request.adopted_elsewhere:
            submit = request.submit
            queued, waiting = self._journal.queued_against(submit), self._fleet.waiting_of(submit.request_class)
            refusal = self._admission.on_not_held(request.number, submit, queued, now_s, waiting)
            if refusal is not None:
                return self._completion.reject_unheld(now_s, request, refusal)
        self._journal.requeue_not_adopted(request, NOT_HELD_TEXT)
        return self._notify_admitted(request)

    def _notify_admitted(self, request: Request) -> list[Effect]:
        if request.adopted_elsewhere:
            return []  # its readers got `Admitted` before
        why = Why("adoption", "continue here", (Figure("tokens", len(request.tokens)),))
        admitted = Admitted(request.key, request.submit.trace, why, request.submit.origin)
        return [Send(reader, admitted) for reader in request.readers]
