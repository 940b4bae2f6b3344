"""Adoption of a request: another dispatcher takes over what this instance runs, or ran until a moment ago.

Later messages of the old dispatcher name an attempt that is here no more. Knows no step, no slot and no client; the
hash chain of the tokens that the client has proves that the adopting dispatcher acts for the request's own client.
"""

from collections.abc import Callable
from dataclasses import replace

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Adopt, Adopted, AdoptedElsewhere, NotHeld, Place, Preempted
from dunlin.messages.types import I32, Figure, FinishReason, Why, i32
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.finished_answers import FinishedAnswers
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable


class SequenceAdoption:
    """Answers `Adopt`. `on_reassigned(sequence)`: it is another dispatcher's attempt now."""

    def __init__(
        self,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        finished_answers: FinishedAnswers,
        on_reassigned: Callable[[Sequence], list[Effect]],
    ) -> None:
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._finished_answers = finished_answers
        self._on_reassigned = on_reassigned

    @handles
    def adopt(self, now_s: float, sender: Address, adopt: Adopt) -> list[Effect]:
        """Give the request to the sender, or say that it is not here."""
        sequence = self._find_running(adopt)
        if sequence is not None:
            return self._reassign(sender, adopt, sequence)
        answer = self._finished_answers.lookup(now_s, adopt.key, adopt.tenant, adopt.idempotency)
        if answer is None:
            return [_not_held(sender, adopt)]
        if _conflicts(adopt, answer.place):
            return [_not_held(sender, adopt, conflict=True)]
        if not _fits(adopt, answer.place, answer.tokens):
            return [_not_held(sender, adopt)]
        return [_adopted(sender, adopt, answer.place, answer.tokens, answer.finish)]

    def _find_running(self, adopt: Adopt) -> Sequence | None:
        """The newest attempt that still runs; an older one of the same request may be ending."""
        found = [
            sequence
            for sequence in self._sequences.by_arrival()
            if sequence.state not in (SequenceState.ENDING, SequenceState.ENDED) and _is_named(adopt, sequence.place)
        ]
        return found[-1] if found else None

    def _reassign(self, sender: Address, adopt: Adopt, sequence: Sequence) -> list[Effect]:
        place, tokens = sequence.place, i32(sequence.tokens)
        if _conflicts(adopt, place):
            return [_not_held(sender, adopt, conflict=True)]
        if not _fits(adopt, place, tokens):
            return [_not_held(sender, adopt)]
        lacks_logprobs = place.sampling.logprobs is not None and len(tokens) > adopt.length
        if lacks_logprobs or sequence.scored > adopt.scored:
            # Log-probabilities that the client has not went out, and are stored nowhere.
            return [*self._notify_former(sender, sequence), *self._lifecycle.stop(sequence), _not_held(sender, adopt)]
        effects = self._notify_former(sender, sequence)
        self._sequences.reassign(sequence, sender, replace(place, request=adopt.request, attempt=adopt.attempt))
        known = (sequence.number, sequence.suspicion, sequence.trial_stop)
        effects.append(_adopted(sender, adopt, place, tokens, FinishReason.RUNNING, *known))
        if sequence.preempted:
            effects.append(Send(sender, Preempted(adopt.request, adopt.attempt)))
        return effects + self._on_reassigned(sequence)

    def _notify_former(self, sender: Address, sequence: Sequence) -> list[Effect]:
        if sequence.dispatcher == sender:
            return []
        place = sequence.place
        figures = (Figure("tokens", len(sequence.tokens)),)
        why = Why("adoption", f"given to {sender}", figures)
        return [Send(sequence.dispatcher, AdoptedElsewhere(place.request, place.attempt, sender, why))]


def _is_named(adopt: Adopt, place: Place) -> bool:
    if adopt.key and place.key == adopt.key:
        return True
    # A request that two dispatchers began under one name has an id from each of them.
    return bool(adopt.idempotency) and (place.tenant, place.idempotency) == (adopt.tenant, adopt.idempotency)


def _conflicts(adopt: Adopt, place: Place) -> bool:
    return bool(adopt.idempotency) and place.idempotency == adopt.idempotency and place.digest != adopt.digest


def _fits(adopt: Adopt, place: Place, tokens: I32) -> bool:
    """Whether the tokens that the client has are the first of these, and the prompt ends where it says."""
    if place.tenant != adopt.tenant or not 0 <= adopt.received <= adopt.length:
        return False
    if adopt.length - adopt.received != place.prompt_tokens:
        return False
    start = prefix_hash.chain_root(adopt.tenant, "", adapter=place.adapter)
    return prefix_hash.has_prefix(start, tokens, adopt.length, adopt.chain)


def _adopted(
    sender: Address,
    adopt: Adopt,
    place: Place,
    tokens: I32,
    finish: FinishReason,
    sequence: int = 0,
    suspicion: int = 0,
    trial_stop: int = 0,
) -> Effect:
    figures = (
        Figure("tokens", len(tokens)),
        Figure("client_has", adopt.length),
        Figure("attempt_before", place.attempt),
    )
    chosen = "go on under another dispatcher" if finish is FinishReason.RUNNING else "deliver what ended here"
    why = Why("adoption", chosen, figures)
    rest = tokens[adopt.length :]
    known = (place.key, rest, place.max_tokens, finish, sequence, why, suspicion, trial_stop)
    return Send(sender, Adopted(adopt.request, adopt.attempt, *known))


def _not_held(sender: Address, adopt: Adopt, conflict: bool = False) -> Effect:
    return Send(sender, NotHeld(adopt.request, adopt.attempt, conflict))
