"""Dispatches waiting requests to instances: one pass after every message, which returns the `Place` messages.

The journal gives the order of requests, the fleet state the candidates, and the policy the choice; no state of its own.
"""

from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Place
from dunlin.messages.types import Figure, RejectedOption, RequestClass, Why
from dunlin.policies.dispatch import DISPATCH_POLICIES
from services.dispatcher.config import PlacementConfig
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.placement.instance_pools import InstancePools
from services.dispatcher.placement.prefix_affinity import PrefixAffinity
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request

LOOK_AHEAD = 64
"""Waiting requests that one round looks at: one that only a busy large instance could hold blocks none behind it."""


class RequestPlacer:
    """The dispatcher's router: chooses an instance for each waiting request by the dispatch policy."""

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        affinity: PrefixAffinity,
        config: PlacementConfig,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._affinity = affinity
        self._policy = DISPATCH_POLICIES[config.policy]
        self._pools = InstancePools(fleet, config)
        self._has_groups = config.long_policy == "group"

    def dispatch_waiting(self, now_s: float) -> tuple[list[Effect], list[Request]]:
        """The effects of this pass, and the requests that no known instance can ever hold, which the caller ends.

        Interactive requests are dispatched first.
        """
        effects: list[Effect] = []
        oversized: list[Request] = []
        for request_class in RequestClass:
            if self._journal.queued_of(request_class):
                oversized += self._dispatch_class(now_s, request_class, effects)
        return effects, oversized

    def _dispatch_class(self, now_s: float, request_class: RequestClass, effects: list[Effect]) -> list[Request]:
        """Append the `Place` messages of one class to `effects`; returns the requests that no instance can hold."""
        oversized: list[Request] = []
        placed = True
        while placed and self._journal.queued_of(request_class) and self._fleet.has_room(1, request_class):
            placed = False
            oversized = []
            full_pools: set[bool] = set()
            for request in self._journal.waiting(request_class, LOOK_AHEAD):
                is_long = self._pools.is_long(request)
                if is_long in full_pools:
                    continue
                if not self._make_fit(request):
                    oversized.append(request)
                elif place := self._choose_and_dispatch(now_s, request):
                    effects.append(place)
                    placed = True
                elif self._pools.is_used:
                    full_pools.add(is_long)  # the other pool's requests do not wait behind it
                elif not self._fleet.has_room(len(request.tokens), request_class):
                    break  # it waits for slots: a younger or smaller request must not take those that become free
        return oversized

    def _make_fit(self, request: Request) -> bool:
        """Let it grow no longer than an instance holds, if its client named no limit; False: none can ever hold it."""
        limit = self._fleet.fleet_max_length(self._pools.excluded(request))
        if limit is None or request.max_length <= limit:
            return True
        # Its first instance left it more than any has now. Where there are groups, one may still hold all of that.
        return not self._has_groups and request.lower_limit(limit)

    def _choose_and_dispatch(self, now_s: float, request: Request) -> Effect | None:
        slots, request_class = len(request.tokens), request.dispatched_as
        if not self._fleet.has_room(slots, request_class):
            return None
        hits = self._affinity.prefix_hits(request)
        excluded = self._pools.excluded(request)
        found = self._fleet.candidates(slots, request.max_length, excluded, hits, request_class)
        if not found:
            return None
        candidates = [candidate for _, candidate in found]
        choice = self._policy(slots, candidates, self._fleet.candidate_count(request_class))
        request.expected_cached_tokens = candidates[choice.index].cached_tokens
        if request.first_dispatch_s is None:
            request.first_dispatch_s = now_s
        return self.dispatch(now_s, request, found[choice.index][0], choice.why)

    def dispatch(
        self, now_s: float, request: Request, instance: Address, why: Why, handle: int = 0, group: int = 0
    ) -> Effect:
        """Begin a queued request's next attempt at `instance`; the `Place` message that does it.

        `handle` names slots there that hold the request's KV already (a migration's target); 0: none. `group`: the
        elastic group that the instance leads and that is to hold the request; 0: the instance alone is.
        """
        if request.max_tokens is None:
            request.max_tokens = self._fleet.max_length(instance) - request.prompt_tokens
        self._journal.dispatch(request, instance, group)
        submit, (queued_s, lost_s) = request.submit, request.waited_s(now_s)
        tokens = min(len(request.tokens), self._fleet.capacity_slots(instance)) if group else len(request.tokens)
        self._fleet.reserve(instance, request.number, tokens, request.dispatched_as)
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
            may_preempt=submit.request_class is RequestClass.INTERACTIVE,
            handle=handle,
            why=_with_last_outcome(why, request),
            key=request.key,
            idempotency=submit.idempotency,
            digest=submit.digest,
            trace=submit.trace,
            suspicion=request.suspicion_left,
            rises_after_s=request.rises_after_s(now_s),
            ttft_objective_s=submit.ttft_objective_s or 0.0,
            tpot_objective_s=submit.tpot_objective_s or 0.0,
            queued_s=queued_s,
            lost_s=lost_s,
            group=group,
            scored=request.scored,
            adapter=submit.adapter,
        )
        return Send(instance, place)


def _with_last_outcome(why: Why, request: Request) -> Why:
    """The policy's reason, with the outcome of the attempt before as a rejected option."""
    if request.last_outcome is None:
        return why
    option, lost = request.last_outcome
    figures = (*why.figures, Figure("attempt", request.attempt), Figure("tokens_kept", request.generated_tokens))
    return replace(why, figures=figures, rejected=(RejectedOption(option, lost), *why.rejected))
