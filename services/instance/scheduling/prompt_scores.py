"""The log-probabilities of prompt tokens of one step, as a message for each request. Pure translation of columns."""

from dunlin.effects import Effect, Send
from dunlin.messages.dispatch import PromptScored
from services.instance.scheduling.step_outcome import StepOutcome
from services.instance.sequence.states import WANTS_TOKENS


def score_messages(answer: StepOutcome) -> list[Effect]:
    """One message for each sequence that was scored, to its dispatcher; the sequence knows then what was sent."""
    scores = answer.done.scores
    if scores is None:
        return []
    known = {sequence.number: sequence for sequence in answer.rows}
    effects: list[Effect] = []
    at = top = 0
    for number, start, count, best in zip(scores.sequence, scores.start, scores.count, scores.best, strict=True):
        part, tops = slice(at, at + count), slice(top, top + count * best)
        at, top = part.stop, tops.stop
        sequence = known.get(number)
        if sequence is None or sequence.state not in WANTS_TOKENS:
            continue
        sequence.scored = max(sequence.scored, start + count - 1)
        columns = scores.logprob[part], scores.rank[part], scores.top_token[tops], scores.top_logprob[tops]
        place = sequence.place
        effects.append(Send(sequence.dispatcher, PromptScored(place.request, place.attempt, start, best, *columns)))
    return effects
