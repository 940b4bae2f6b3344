"""A request that began at another dispatcher: whichever instance holds it is found and asked to go on for this one.

If none does, the request is rebuilt from its client's own tokens and placed like any other. Knows no policy; the
instances decide whether the client's tokens are the request's.
"""

from dataclasses import dataclass, field

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Adopt, Adopted, AdoptedElsewhere, NotHeld
from dunlin.messages.door import Admitted, Delta, Submit
from dunlin.messages.types import Figure, FinishReason, Why
from services.dispatcher.config import DispatcherAdoptionConfig
from services.dispatcher.lifecycle.completion import RequestCompletion, RequestTotals
from services.dispatcher.lifecycle.joining import idempotency_conflict
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal, Request, RequestState
from services.dispatcher.requests.timers import AdoptionQueryRetry, AdoptionQueryTimeout

READOPT_AFTER_S = 1.0
"""Two dispatchers whose clients read the same request have it for so long in turn."""

NOT_HELD_TEXT = "no instance holds it: it goes on from the tokens that its client has"


@dataclass(slots=True)
class AdoptionQuery:
    """What is asked of every instance on behalf of one request, and who has answered (or cannot any more)."""

    command: Adopt
    answered: dict[Address, None] = field(default_factory=dict)


class RequestAdoption:
    """Owns the questions. `adopted_total` counts the requests that were found."""

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        fences: AttemptFences,
        endings: RequestCompletion,
        totals: RequestTotals,
        config: DispatcherAdoptionConfig,
    ) -> None:
        self.adopted_total = 0
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._completion = endings
        self._totals = totals
        self._config = config
        self._queries: dict[int, AdoptionQuery] = {}

    @staticmethod
    def is_needed(submit: Submit) -> bool:
        """Whether an instance may hold it: its client has been elsewhere, or may have been."""
        return bool(submit.key or submit.idempotency)

    def query_instances(self, request: Request) -> list[Effect]:
        """Ask everybody who can be reached; those who join meanwhile are asked then."""
        submit, length = request.submit, len(request.tokens)
        chain = prefix_hash.chain_of(prefix_hash.chain_root(submit.tenant, ""), request.tokens, length)
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
        )
        self._queries[request.number] = AdoptionQuery(adopt)
        asked: list[Effect] = [Send(instance, adopt) for instance in self._fleet.connected]
        return [
            *asked,
            After(self._config.ask_timeout_s, AdoptionQueryTimeout(request.number, request.attempt)),
            *self._recheck(request.number),
        ]

    def on_instance_joined(self, instance: Address) -> list[Effect]:
        """One more who can be asked."""
        return [Send(instance, ask.command) for ask in self._queries.values()]

    def on_instance_gone(self, instance: Address) -> list[Effect]:
        """It will not answer."""
        for ask in self._queries.values():
            ask.answered[instance] = None
        return self.recheck()

    def recheck(self) -> list[Effect]:
        """The fleet changed: perhaps nobody is left who could hold it."""
        effects: list[Effect] = []
        for number in list(self._queries):
            effects += self._recheck(number)
        return effects

    @handles
    def on_adopted(self, now_s: float, sender: Address, message: Adopted) -> list[Effect]:
        """Somebody holds it: deliver what the client lacks, and go on. A second one who does is told to stop."""
        request = self._queried(message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            if message.finish is not FinishReason.RUNNING:
                return []
            return self._fences.cancel(sender, message.request, message.attempt, "it goes on elsewhere")
        del self._queries[request.number]
        self._journal.adopt(request, sender, message.key)
        request.max_tokens = message.max_tokens
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
        """Not there."""
        request = self._queried(message.request, message.attempt)
        if request is None:
            return []
        if message.conflict:
            del self._queries[request.number]
            submit, effects = request.submit, list[Effect]()
            for reader in request.readers:
                effects += self._completion.reject(now_s, reader, submit, idempotency_conflict(submit))
            return effects + self._completion.abort(
                now_s, request, FinishReason.CANCELLED, "its key is another request's"
            )
        self._queries[request.number].answered[sender] = None
        return self._recheck(request.number)

    @handles
    def on_query_timeout(self, now_s: float, sender: Address, message: AdoptionQueryTimeout) -> list[Effect]:
        """Whoever has not answered by now is not waited for."""
        request = self._queried(message.request, message.attempt)
        if request is None:
            return []
        del self._queries[request.number]
        return self._rebuild(request)

    @handles
    def on_adopted_elsewhere(self, now_s: float, sender: Address, message: AdoptedElsewhere) -> list[Effect]:
        """Another dispatcher has it. Its client has gone there, or somebody reads it at both.

        Where readers stay it is asked back after a while: so both get all of it, and nobody fails because a dispatcher
        that slept asked for it on behalf of a client that has long moved on.
        """
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return []
        if not request.readers:
            return self._completion.abort(now_s, request, FinishReason.CANCELLED, f"{message.by} goes on with it")
        self._fleet.release(sender, request.number)
        self._journal.reclaim(request)
        return [After(READOPT_AFTER_S, AdoptionQueryRetry(request.number, request.attempt))]

    @handles
    def on_query_retry(self, now_s: float, sender: Address, message: AdoptionQueryRetry) -> list[Effect]:
        """The other one has had it for a while."""
        request = self._journal.get(message.request)
        if request is None or request.state is not RequestState.ADOPTING or request.attempt != message.attempt:
            return []
        return self.query_instances(request)

    def _queried(self, number: int, attempt: int) -> Request | None:
        ask, request = self._queries.get(number), self._journal.get(number)
        return request if request is not None and ask is not None and ask.command.attempt == attempt else None

    def _recheck(self, number: int) -> list[Effect]:
        """Go on without an instance that holds it, once all that can be trusted have said that they do not."""
        request, ask = self._journal.get(number), self._queries[number]
        if request is None:
            del self._queries[number]
            return []
        if not self._fleet.serving_count or any(one not in ask.answered for one in self._fleet.trusted):
            return []
        del self._queries[number]
        return self._rebuild(request)

    def _rebuild(self, request: Request) -> list[Effect]:
        self._journal.requeue_not_adopted(request, NOT_HELD_TEXT)
        return self._notify_admitted(request)

    def _notify_admitted(self, request: Request) -> list[Effect]:
        if request.adopted_elsewhere:
            return []  # its readers know it
        why = Why("adoption", "go on here", (Figure("tokens", len(request.tokens)),))
        admitted = Admitted(request.key, request.submit.trace, why, request.submit.origin)
        return [Send(reader, admitted) for reader in request.readers]
