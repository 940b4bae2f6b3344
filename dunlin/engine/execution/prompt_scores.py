"""Log-probabilities of prompt tokens, from the hidden states that a step's rows have after the last layer.

Computed a few positions at a time: the logits of a long prompt are never there at once. Knows no step and no message
but the columns of its answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.execution.sequence import EngineSequence
from dunlin.messages.types import PromptScores

MOST_LOGITS = 1 << 22
"""Logits that are there at once, in fp32: 16 MiB. Those of one position at least."""
FIRST_POSITIONS = 8
"""Positions that are scored at once before it is known how long that takes."""

ComputeLogits = Callable[[Tensor], Tensor]
"""From hidden states `[positions, hidden]` to logits `[positions, vocab]` fp32."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Positions of row number `row`, each of which is scored by the token after it; packed from `at` on."""

    row: int
    sequence: int
    state: EngineSequence
    positions: range
    at: int


class PromptScorer:
    """Owns how many positions are scored between two safepoints: as many as take about `response_s` by `clock`, and
    have no more than MOST_LOGITS.
    """

    def __init__(self, logits: ComputeLogits, vocabulary: int, clock: Callable[[], float], response_s: float) -> None:
        self.vocabulary = vocabulary
        self.clock = clock
        self._logits = logits
        self._response_s = response_s
        self._most = max(1, MOST_LOGITS // vocabulary)
        self.positions = min(FIRST_POSITIONS, self._most)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of these positions' hidden states."""
        return self._logits(hidden)

    def learn(self, positions: int, seconds: float) -> None:
        """So many positions took so long."""
        if seconds > self._response_s:
            self.positions = max(1, positions // 2)
        elif positions == self.positions and seconds < self._response_s / 3:
            self.positions = min(self._most, positions * 2)


class PromptScoring:
    """Owns the scores of one step's rows. `hidden`: `[tokens, hidden]`, packed. `advance` until it is `done`."""

    def __init__(self, scorer: PromptScorer, hidden: Tensor, parts: Sequence[PromptPart]) -> None:
        self._scorer = scorer
        self._hidden = hidden
        self._vocabulary = scorer.vocabulary
        self._parts = {part.row: part for part in parts}
        self._found = {part.row: PromptScores() for part in parts}
        self._todo = [part.row for part in reversed(parts)]

    def __repr__(self) -> str:
        return f"[rows: {len(self._parts)} | to score: {len(self._todo)}]"

    @property
    def done(self) -> bool:
        """Whether every row that has not left is scored."""
        return not self._todo

    def advance(self) -> None:
        """Score the next positions of a row."""
        began_s = self._scorer.clock()
        part, found = self._parts[self._todo[-1]], self._found[self._todo[-1]]
        first = part.positions.start + len(found.logprob)
        stop = min(part.positions.stop, first + self._scorer.positions)
        at = part.at + first - part.positions.start
        targets = torch.tensor(part.state.tokens[first + 1 : stop + 1], dtype=torch.int64, device=self._hidden.device)
        self._score(self._scorer.logits(self._hidden[at : at + stop - first]), targets, part, found)
        self._scorer.learn(stop - first, self._scorer.clock() - began_s)
        if stop == part.positions.stop:
            self._todo.pop()

    def leave(self, row: int) -> None:
        """The row's scores are not wanted any more."""
        if self._parts.pop(row, None) is not None and row in self._todo:
            self._todo.remove(row)

    def finish(self) -> tuple[PromptScores | None, frozenset[int]]:
        """The answer's columns, and the numbers of the rows with a score that is no number; their scores count not.

        The sequences know from now on what was scored of them.
        """
        scores, failed = PromptScores(), set[int]()
        for row, part in self._parts.items():
            found = self._found[row]
            if any(logprob != logprob for logprob in found.logprob):
                failed.add(row)
                continue
            part.state.scored = part.positions.stop
            _append(scores, part, found, min(part.state.sampling.prompt_logprobs or 0, self._vocabulary))
        return (scores if scores.sequence else None), frozenset(failed)

    def _score(self, logits: Tensor, targets: Tensor, part: PromptPart, found: PromptScores) -> None:
        logprobs = logits.log_softmax(dim=-1)
        chosen = logprobs.gather(1, targets[:, None])
        found.logprob.extend(chosen[:, 0].tolist())
        found.rank.extend(((logprobs > chosen).sum(dim=-1) + 1).tolist())
        if best := part.state.sampling.prompt_logprobs:
            top = logprobs.topk(min(best, self._vocabulary))
            found.top_token.extend(top.indices.flatten().tolist())
            found.top_logprob.extend(top.values.flatten().tolist())


def _append(scores: PromptScores, part: PromptPart, found: PromptScores, best: int) -> None:
    scores.sequence.append(part.sequence)
    scores.start.append(part.positions.start + 1)
    scores.count.append(len(part.positions))
    scores.best.append(best)
    scores.logprob.extend(found.logprob)
    scores.rank.extend(found.rank)
    scores.top_token.extend(found.top_token)
    scores.top_logprob.extend(found.top_logprob)
