"""The usage object of OpenAI's responses: tokens of each choice so far, and of all choices."""

from collections.abc import Sequence

from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.openai.reply import Json


class CallUsage:
    """Counts one call's tokens. Choice i is of prompt i // `choices`; a prompt counts once, whatever its choices."""

    def __init__(self, prompt_tokens: Sequence[int], choices: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._choices = choices
        self._completion_tokens = [0] * (len(prompt_tokens) * choices)
        self._cached_tokens = [0] * (len(prompt_tokens) * choices)

    def add(self, index: int, piece: OutputPiece) -> None:
        """Count a piece of choice `index`."""
        self._completion_tokens[index] += len(piece.tokens)
        self._cached_tokens[index] = max(piece.cached_tokens, self._cached_tokens[index])

    def of_choice(self, index: int) -> Json:
        """The usage of choice `index` and its prompt so far."""
        prompt = self._prompt_tokens[index // self._choices]
        return _usage(prompt, self._completion_tokens[index], self._cached_tokens[index])

    def total(self) -> Json:
        """The usage of all choices; a prompt's cached tokens are those that its first choice found."""
        cached = sum(self._cached_tokens[:: self._choices])
        return _usage(sum(self._prompt_tokens), sum(self._completion_tokens), cached)


def _usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
