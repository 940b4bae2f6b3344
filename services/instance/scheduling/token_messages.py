"""The tokens of one step, as one message per dispatcher. Pure translation of an answer's columns into a message's."""

from collections.abc import Sequence as Indices

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Tokens
from dunlin.messages.engine import StepDone
from dunlin.messages.types import I32, I64, f32, i8, i32, i64
from services.instance.scheduling.step_outcome import StepOutcome
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import WANTS_TOKENS


def steady_token_messages(answer: StepOutcome) -> list[Effect]:
    """The message of a plain decode step: the requests of its tokens are known from the steps before."""
    decoding = answer.decode_batch
    if decoding is None or decoding.dispatcher is None:
        return token_messages(answer)
    return [Send(decoding.dispatcher, _tokens(decoding.requests, decoding.attempts, answer.positions, answer.done))]


def token_messages(answer: StepOutcome) -> list[Effect]:
    """One message per dispatcher with its tokens of the step. Sequences that are ending yield no tokens."""
    sampled, done = answer.sampled, answer.done
    wanting = [sequence.dispatcher if sequence.state in WANTS_TOKENS else None for sequence in sampled]
    first = wanting[0] if wanting else None
    if first is not None and len(sampled) == len(done.token) == wanting.count(first):
        return [Send(first, _whole(sampled, done))]  # nearly always: the columns go on as they are
    groups: dict[Address, list[int]] = {}
    for place, dispatcher in enumerate(wanting):
        if dispatcher is not None:
            groups.setdefault(dispatcher, []).append(place)
    tops = _offsets(done)
    return [
        Send(dispatcher, _subset([sampled[i] for i in places], [answer.indices[i] for i in places], done, tops))
        for dispatcher, places in groups.items()
    ]


def _whole(sequences: list[Sequence], done: StepDone) -> Tokens:
    return _tokens(
        i64([sequence.place.request for sequence in sequences]),
        i32([sequence.place.attempt for sequence in sequences]),
        i64([len(sequence.tokens) - 1 for sequence in sequences]),
        done,
    )


def _tokens(requests: I64, attempts: I32, positions: I64, done: StepDone) -> Tokens:
    has_tops = bool(done.top_token)
    return Tokens(
        requests,
        attempts,
        positions,
        done.token,
        done.logprob,
        done.finish,
        done.top_count if has_tops else i32(),
        done.top_token,
        done.top_logprob,
    )


def _subset(sequences: list[Sequence], indices: Indices[int], done: StepDone, tops: list[int]) -> Tokens:
    """The entries at `indices` alone, which belong to `sequences`."""
    top_count, top_token, top_logprob = i32(), i32(), f32()
    for index in indices if tops else ():
        span = slice(tops[index], tops[index + 1])
        top_count.append(tops[index + 1] - tops[index])
        top_token += done.top_token[span]
        top_logprob += done.top_logprob[span]
    picked = StepDone(
        done.step,
        i64(),
        i32([done.token[index] for index in indices]),
        f32([done.logprob[index] for index in indices]),
        i8([done.finish[index] for index in indices]),
        top_count=top_count,
        top_token=top_token,
        top_logprob=top_logprob,
    )
    return _whole(sequences, picked)


def _offsets(done: StepDone) -> list[int]:
    """Where each entry's tops start in the flat columns; empty if there are none."""
    if not done.top_token:
        return []
    offsets = [0]
    for count in done.top_count:
        offsets.append(offsets[-1] + count)
    return offsets
