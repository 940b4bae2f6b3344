"""From what a client sent to the prompt's tokens: what the model can hold, and nothing that it does not have.

Knows no request, no core and no event loop: large prompts are read in another process (`intake.py`).
"""

from dunlin.limits import MOST_PROMPT_CHARACTERS
from dunlin.messages.door import Rejection
from dunlin.messages.public import ChatMessage
from dunlin.messages.types import I32, i32
from dunlin.text.chat import ChatError
from services.dispatcher.model import Model
from services.dispatcher.refusals import DoorError, too_long

Prompt = str | I32 | tuple[ChatMessage, ...]


class Prompts:
    """Turns prompts into tokens, and refuses what the model cannot take."""

    def __init__(self, model: Model, most_characters: int = MOST_PROMPT_CHARACTERS) -> None:
        self._model = model
        self._most_characters = most_characters

    def tokens_of(self, prompt: Prompt) -> I32:
        """The prompt's tokens.

        Raises:
            DoorError: no such tokens, messages that the template refuses, or too long.
        """
        if isinstance(prompt, str):
            tokens = self._encode(prompt, special=True)
        elif isinstance(prompt, tuple):
            tokens = self._encode(self._rendered(prompt), special=False)
        else:
            self.check_length(prompt, None)
            tokens = self.known(prompt)
        if not tokens:
            raise DoorError(Rejection.INVALID, "the prompt is empty: send at least one token", "prompt")
        return tokens

    def check_length(self, tokens: I32, max_tokens: int | None) -> None:
        """Raises DoorError for what the model cannot hold."""
        if len(tokens) + (max_tokens or 1) > self._model.max_positions:
            raise DoorError(Rejection.TOO_LONG, too_long(len(tokens), max_tokens, self._model.max_positions))

    def check_received(self, tokens: I32, received: I32) -> None:
        """Raises DoorError for what a client cannot have got after the prompt `tokens`."""
        if len(tokens) + len(received) > self._model.max_positions:
            most = self._model.max_positions
            text = f"resume_tokens: {len(received)} after a prompt of {len(tokens)} are more than the model's {most}"
            raise DoorError(Rejection.INVALID, text, "resume_tokens")
        self.known(received)

    def known(self, tokens: I32) -> I32:
        """The same tokens. Raises DoorError for one that the model does not have."""
        vocabulary = self._model.vocabulary
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
            token = next(token for token in tokens if not 0 <= token < vocabulary)
            text = f"token id {token} is outside the vocabulary of {vocabulary}"
            raise DoorError(Rejection.INVALID, text, "prompt")
        return tokens

    def _rendered(self, messages: tuple[ChatMessage, ...]) -> str:
        try:
            return self._model.render(messages)
        except ChatError as error:
            raise DoorError(Rejection.INVALID, str(error), error.field) from error

    def _encode(self, text: str, special: bool) -> I32:
        if len(text) > self._most_characters:
            text = f"a prompt of {len(text)} characters; at most {self._most_characters} are taken"
            raise DoorError(Rejection.TOO_LONG, text)
        tokenizer = self._model.tokenizer
        fewest = tokenizer.fewest_tokens(text)
        if fewest >= self._model.max_positions:
            text = too_long(fewest, None, self._model.max_positions, is_least=True)
            raise DoorError(Rejection.TOO_LONG, text)
        try:
            return i32(tokenizer.encode(text, add_special_tokens=special))
        except (UnicodeEncodeError, TypeError) as error:  # lone surrogates, which JSON can spell
            raise DoorError(Rejection.INVALID, "the prompt is not valid Unicode text", "prompt") from error
