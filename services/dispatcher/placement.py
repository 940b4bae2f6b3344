"""One pass that gives waiting requests to instances: run after every change, it returns what to send.

The order is the journal's, the candidates are the fleet's, the choice is the policy's; nothing is remembered here.
"""

from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Place
from dunlin.messages.types import Figure, Rejected, Why
from dunlin.policies.dispatch import Policy
from services.dispatcher.affinity import Affinity
from services.dispatcher.fleet import Fleet
from services.dispatcher.journal import Journal, Request

LOOK_AHEAD = 64
"""Waiting requests that one round looks at: one that only a busy big instance could hold keeps no other waiting."""


class Placement:
    """Hands out what waits."""

    def __init__(self, journal: Journal, fleet: Fleet, affinity: Affinity, policy: Policy) -> None:
        self._journal = journal
        self._fleet = fleet
        self._affinity = affinity
        self._policy = policy

    def settle(self, now_s: float) -> tuple[list[Effect], list[Request]]:
        """What to send, and the requests that no known instance can ever hold: the caller ends them."""
        effects: list[Effect] = []
        hopeless: list[Request] = []
        placed = True
        while placed and self._journal.queued and self._fleet.has_room():
            placed = False
            hopeless = []
            for request in self._journal.waiting(LOOK_AHEAD):
                if self._is_hopeless(request):
                    hopeless.append(request)
                elif offer := self._place(now_s, request):
                    effects.append(offer)
                    placed = True
                elif not self._fleet.has_room(len(request.tokens)):
                    break  # for lack of room: nothing younger or smaller may take what frees up first
        return effects, hopeless

    def _is_hopeless(self, request: Request) -> bool:
        limit = self._fleet.limit_of_all(request.unfit)
        return limit is not None and limit < request.longest

    def _place(self, now_s: float, request: Request) -> Effect | None:
        slots = len(request.tokens)
        if not self._fleet.has_room(slots):
            return None
        asks = self._fleet.asks(slots, request.longest, request.unfit, self._affinity.held(request))
        if not asks:
            return None
        candidates = [candidate for _, candidate in asks]
        choice = self._policy(slots, candidates, self._fleet.open_count)
        request.expected_tokens = candidates[choice.index].held_tokens
        if request.placed_s is None:
            request.placed_s = now_s
        return self.offer(request, asks[choice.index][0], choice.why)

    def offer(self, request: Request, instance: Address, why: Why, handle: int = 0) -> Effect:
        """Hand a waiting request out to `instance`; `handle` names room there that holds its KV already."""
        if request.max_tokens is None:
            request.max_tokens = self._fleet.limit(instance) - request.prompt_tokens
        self._journal.hand_out(request, instance)
        self._fleet.reserve(instance, request.number, len(request.tokens))
        submit = request.submit
        place = Place(
            request.number,
            request.attempt,
            request.tokens[:],
            request.prompt_tokens,
            request.max_tokens,
            submit.sampling,
            submit.stop_ids,
            submit.request_class,
            submit.tenant,
            handle=handle,
            why=_with_past(why, request),
            key=request.key,
            idempotency=submit.idempotency,
            digest=submit.digest,
            trace=submit.trace,
            suspicion=request.suspicion,
        )
        return Send(instance, place)


def _with_past(why: Why, request: Request) -> Why:
    """The policy's reason, and what became of the attempt before."""
    if request.lost is None:
        return why
    option, lost = request.lost
    figures = (*why.figures, Figure("attempt", request.attempt), Figure("tokens_kept", request.generated))
    return replace(why, figures=figures, rejected=(Rejected(option, lost), *why.rejected))
