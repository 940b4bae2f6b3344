"""A request that began at another dispatcher: whichever instance holds it is found and asked to go on for this one.

If none does, the request is rebuilt from its client's own tokens and placed like any other. Knows no policy; the
instances decide whether the client's tokens are the request's.
"""

from dataclasses import dataclass, field

from dunlin import prefix
from dunlin.effects import Address, After, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.dispatch import Adopt, Adopted, NotHeld, Taken
from dunlin.messages.door import Admitted, Delta, Submit
from dunlin.messages.types import Figure, Finish, Why
from services.dispatcher.config import DispatcherAdoptionConfig
from services.dispatcher.endings import Endings, Totals
from services.dispatcher.fences import Fences
from services.dispatcher.fleet import Fleet
from services.dispatcher.joining import conflict
from services.dispatcher.journal import Journal, Request, State
from services.dispatcher.timers import AskAgain, AskOver

RETAKE_S = 1.0
"""Two dispatchers whose clients read the same request have it for so long in turn."""

NOBODY = "no instance holds it: it goes on from the tokens that its client has"


@dataclass(slots=True)
class Ask:
    """What is asked of every instance on behalf of one request, and who has answered (or cannot any more)."""

    adopt: Adopt
    answered: dict[Address, None] = field(default_factory=dict)


class Adoption:
    """Owns the questions. `adopted_total` counts the requests that were found."""

    def __init__(
        self,
        journal: Journal,
        fleet: Fleet,
        fences: Fences,
        endings: Endings,
        totals: Totals,
        config: DispatcherAdoptionConfig,
    ) -> None:
        self.adopted_total = 0
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._endings = endings
        self._totals = totals
        self._config = config
        self._asks: dict[int, Ask] = {}

    @staticmethod
    def is_needed(submit: Submit) -> bool:
        """Whether an instance may hold it: its client has been elsewhere, or may have been."""
        return bool(submit.key or submit.idempotency)

    def ask(self, request: Request) -> list[Effect]:
        """Ask everybody who can be reached; those who join meanwhile are asked then."""
        submit, length = request.submit, len(request.tokens)
        chain = prefix.chain_of(prefix.root(submit.tenant, ""), request.tokens, length)
        adopt = Adopt(
            request.number,
            request.attempt,
            request.key if request.taken else submit.key,
            submit.tenant,
            length,
            request.generated,
            chain,
            submit.idempotency,
            submit.digest,
        )
        self._asks[request.number] = Ask(adopt)
        asked: list[Effect] = [Send(instance, adopt) for instance in self._fleet.joined]
        return [
            *asked,
            After(self._config.ask_timeout_s, AskOver(request.number, request.attempt)),
            *self._look(request.number),
        ]

    def joined(self, instance: Address) -> list[Effect]:
        """One more who can be asked."""
        return [Send(instance, ask.adopt) for ask in self._asks.values()]

    def gone(self, instance: Address) -> list[Effect]:
        """It will not answer."""
        for ask in self._asks.values():
            ask.answered[instance] = None
        return self.look()

    def look(self) -> list[Effect]:
        """The fleet changed: perhaps nobody is left who could hold it."""
        effects: list[Effect] = []
        for number in list(self._asks):
            effects += self._look(number)
        return effects

    @handles
    def on_adopted(self, now_s: float, sender: Address, message: Adopted) -> list[Effect]:
        """Somebody holds it: deliver what the client lacks, and go on. A second one who does is told to stop."""
        request = self._asking(message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            if message.finish is not Finish.RUNNING:
                return []
            return self._fences.cancel(sender, message.request, message.attempt, "it goes on elsewhere")
        del self._asks[request.number]
        self._journal.adopt(request, sender, message.key)
        request.max_tokens = message.max_tokens
        request.tokens.extend(message.tokens)
        self.adopted_total += 1
        self._totals.tokens += len(message.tokens)
        delta = Delta(message.tokens, finish=message.finish)
        effects = self._admit(request)
        if message.tokens or message.finish is not Finish.RUNNING:
            effects += [Send(reader, delta) for reader in request.readers]
        if message.finish is not Finish.RUNNING:
            effects += self._endings.done(now_s, request, message.finish, message.finish.name.lower())
        return effects

    @handles
    def on_not_held(self, now_s: float, sender: Address, message: NotHeld) -> list[Effect]:
        """Not there."""
        request = self._asking(message.request, message.attempt)
        if request is None:
            return []
        if message.conflict:
            del self._asks[request.number]
            submit, effects = request.submit, list[Effect]()
            for reader in request.readers:
                effects += self._endings.reject(now_s, reader, submit, conflict(submit))
            return effects + self._endings.stop(now_s, request, Finish.CANCELLED, "its key is another request's")
        self._asks[request.number].answered[sender] = None
        return self._look(request.number)

    @handles
    def on_ask_over(self, now_s: float, sender: Address, message: AskOver) -> list[Effect]:
        """Whoever has not answered by now is not waited for."""
        request = self._asking(message.request, message.attempt)
        if request is None:
            return []
        del self._asks[request.number]
        return self._rebuild(request)

    @handles
    def on_taken(self, now_s: float, sender: Address, message: Taken) -> list[Effect]:
        """Another dispatcher has it. Its client has gone there, or somebody reads it at both.

        Where readers stay it is asked back after a while: so both get all of it, and nobody fails because a dispatcher
        that slept asked for it on behalf of a client that has long moved on.
        """
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return []
        if not request.readers:
            return self._endings.stop(now_s, request, Finish.CANCELLED, f"{message.by} goes on with it")
        self._fleet.release(sender, request.number)
        self._journal.seek(request)
        return [After(RETAKE_S, AskAgain(request.number, request.attempt))]

    @handles
    def on_ask_again(self, now_s: float, sender: Address, message: AskAgain) -> list[Effect]:
        """The other one has had it for a while."""
        request = self._journal.get(message.request)
        if request is None or request.state is not State.ASKING or request.attempt != message.attempt:
            return []
        return self.ask(request)

    def _asking(self, number: int, attempt: int) -> Request | None:
        ask, request = self._asks.get(number), self._journal.get(number)
        return request if request is not None and ask is not None and ask.adopt.attempt == attempt else None

    def _look(self, number: int) -> list[Effect]:
        """Go on without an instance that holds it, once all that can be trusted have said that they do not."""
        request, ask = self._journal.get(number), self._asks[number]
        if request is None:
            del self._asks[number]
            return []
        if not self._fleet.placeable_count or any(one not in ask.answered for one in self._fleet.trusted):
            return []
        del self._asks[number]
        return self._rebuild(request)

    def _rebuild(self, request: Request) -> list[Effect]:
        self._journal.enqueue(request, NOBODY)
        return self._admit(request)

    def _admit(self, request: Request) -> list[Effect]:
        if request.taken:
            return []  # its readers know it
        why = Why("adoption", "go on here", (Figure("tokens", len(request.tokens)),))
        admitted = Admitted(request.key, request.submit.trace, why, request.submit.origin)
        return [Send(reader, admitted) for reader in request.readers]
