"""What an answer says of its prompts: their text before that of the model (`echo`), and vLLM's `prompt_logprobs`.

Knows no request and no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dunlin.messages.door import PromptLogprobs
from dunlin.messages.types import I32
from dunlin.text.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0
"""OpenAI's number for a token that is very unlikely."""
Json = dict[str, Any]


def json_logprob(logprob: float) -> float:
    """At least `MIN_LOGPROB`: an excluded token's log-probability is -infinity, which JSON cannot express."""
    return max(logprob, MIN_LOGPROB)


@dataclass(frozen=True, slots=True)
class SpelledPrompt:
    """A prompt's text, without special tokens; `offsets[i]` is where token i's characters start in it."""

    text: str
    offsets: tuple[int, ...]


class AnsweredPrompts:
    """The prompts of one call, each with `choices` answers; choice i is of prompt i // `choices`.

    `echo`: the prompt stands before each answer. `best`: vLLM's `prompt_logprobs`; None: they are not wanted.
    """

    def __init__(
        self, prompts: Sequence[I32], choices: int, echo: bool, best: int | None, tokenizer: Tokenizer
    ) -> None:
        self.echo = echo
        self.best = best
        self._prompts = prompts
        self._choices = choices
        self._tokenizer = tokenizer
        self._spelled: dict[int, SpelledPrompt] = {}
        self._begun: set[int] = set()

    @property
    def are_shown(self) -> bool:
        """Whether an answer says anything of its prompt."""
        return self.echo or self.best is not None

    def tokens(self, choice: int) -> I32:
        """The prompt of a choice."""
        return self._prompts[choice // self._choices]

    def spelled(self, choice: int) -> SpelledPrompt:
        """The text of a choice's prompt."""
        prompt = choice // self._choices
        if prompt not in self._spelled:
            self._spelled[prompt] = _spell(self._prompts[prompt], self._tokenizer)
        return self._spelled[prompt]

    def begin(self, choice: int) -> bool:
        """Whether nothing of the choice was said before; something is from now on."""
        is_first = choice not in self._begun
        self._begun.add(choice)
        return is_first

    def logprobs(self, choice: int, scores: PromptLogprobs | None) -> list[Json | None]:
        """vLLM's `prompt_logprobs`: None for the first token, then by token id the token itself and the likeliest."""
        entries: list[Json | None] = [None]
        if scores is None or self.best is None:
            return entries
        columns = zip(self.tokens(choice)[1:], scores.logprob, scores.rank, scores.tops(self.best), strict=True)
        for token, logprob, rank, top in columns:
            entry = {str(token): self._entry(token, logprob, rank)}
            for place, (other, value) in enumerate(top):
                entry.setdefault(str(other), self._entry(other, value, place + 1))
            entries.append(entry)
        return entries

    def _entry(self, token: int, logprob: float, rank: int) -> Json:
        text = self._tokenizer.token_text(token)
        return {"logprob": json_logprob(logprob), "rank": rank, "decoded_token": text}


def _spell(prompt: I32, tokenizer: Tokenizer) -> SpelledPrompt:
    detokenizer, text, offsets, length = tokenizer.detokenizer(), list[str](), list[int](), 0
    for token in prompt:
        offsets.append(length)
        text.append(detokenizer.push(token))
        length += len(text[-1])
    return SpelledPrompt("".join((*text, detokenizer.finish())), tuple(offsets))
