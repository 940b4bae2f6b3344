"""Log-probabilities of prompt tokens in a modelled engine: functions of token and position, so that any can be told."""

from dataclasses import dataclass

from dunlin.messages.engine import Open
from dunlin.messages.types import I32, PromptScores
from simulator.engine.errors import ContractBroken


@dataclass(slots=True)
class WantedScores:
    """What is to be scored of a sequence: the tokens of its `prompt` after the first, of which `scored` are known, with
    the `best` likeliest tokens there.
    """

    prompt: I32
    best: int
    scored: int


def wanted_scores(opened: Open) -> WantedScores | None:
    """What an `Open` asks for; None: no prompt's log-probabilities."""
    best = opened.sampling.prompt_logprobs
    return None if best is None else WantedScores(opened.tokens[: opened.prompt_tokens], best, opened.scored)


def prompt_logprob(token: int, position: int) -> float:
    """The log-probability of a prompt's token at that position."""
    return -((token * 31 + position * 7) % 64) / 8


def score(
    scores: PromptScores | None, number: int, wanted: WantedScores, start: int, stop: int, vocabulary: int
) -> PromptScores | None:
    """`scores` with those that a row over positions `[start, stop)` of sequence `number` adds.

    Raises:
        ContractBroken: some before `start` are unknown.
    """
    last = len(wanted.prompt) - 1
    if wanted.scored < min(start, last):
        raise ContractBroken(
            f"sequence {number}: token {start} is computed, scores of its prompt end at {wanted.scored}"
        )
    first, stop = max(start, wanted.scored), min(stop, last)
    if first >= stop:
        return scores
    scores = scores or PromptScores()
    best = min(wanted.best, vocabulary)
    scores.sequence.append(number)
    scores.start.append(first + 1)
    scores.count.append(stop - first)
    scores.best.append(best)
    for position in range(first + 1, stop + 1):
        token = wanted.prompt[position]
        scores.logprob.append(prompt_logprob(token, position))
        scores.rank.append(1 + (token + position) % 5)
        scores.top_token.extend((token + other) % vocabulary for other in range(best))
        scores.top_logprob.extend(-float(other) for other in range(best))
    wanted.scored = stop
    return scores
