"""Encodes prompts (text, chat messages or token ids) as tokens, and refuses those that the model cannot process.

Knows no core and no event loop: large prompts are encoded in another process (`preprocess/pool.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

from dunlin.limits import MOST_BAD_TOKENS, MOST_PROMPT_CHARACTERS, InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.public import ChatMessage
from dunlin.messages.types import I32, i32
from dunlin.text.chat_template import ChatTemplateError
from services.dispatcher.admission.refusals import DoorError, too_long_text
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.generation.settings import RequestSettings


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the functions that the answer may call."""

    messages: tuple[ChatMessage, ...]
    functions: tuple[Mapping[str, Any], ...] = ()


Prompt = str | I32 | tuple[ChatMessage, ...] | Conversation


class PromptEncoder:
    """Encodes and checks prompts for one model. Texts of more than `most_characters` are refused unread."""

    def __init__(self, model: ServedModel, most_characters: int = MOST_PROMPT_CHARACTERS) -> None:
        self._model = model
        self._most_characters = most_characters

    def encode(self, prompt: Prompt) -> I32:
        """The prompt's tokens.

        Raises:
            DoorError: token ids outside the vocabulary, messages that the chat template refuses, an empty prompt, or
                one that is too long for the model.
        """
        if isinstance(prompt, str):
            tokens = self._encode_text(prompt, special=True)
        elif isinstance(prompt, tuple | Conversation):
            chat = prompt if isinstance(prompt, Conversation) else Conversation(prompt)
            tokens = self._encode_text(self._rendered(chat), special=not self._model.template.writes_special_tokens)
        else:
            self.check_length(prompt, None)
            tokens = self.checked_tokens(prompt)
        if not tokens:
            raise DoorError(RejectionCode.INVALID, "the prompt is empty: send at least one token", "prompt")
        return tokens

    def check_length(self, tokens: I32, max_tokens: int | None) -> None:
        """Check that the prompt and `max_tokens` (None: one token) fit into the model's context.

        Raises:
            DoorError: they do not.
        """
        if len(tokens) + (max_tokens or 1) > self._model.max_positions:
            raise DoorError(RejectionCode.TOO_LONG, too_long_text(len(tokens), max_tokens, self._model.max_positions))

    def check_received(self, tokens: I32, received: I32) -> None:
        """Check that a client may have `received` these tokens after the prompt `tokens`.

        Raises:
            DoorError: they are more than the model's context, or outside its vocabulary.
        """
        if len(tokens) + len(received) > self._model.max_positions:
            most = self._model.max_positions
            text = f"resume_tokens: {len(received)} after a prompt of {len(tokens)} are more than the model's {most}"
            raise DoorError(RejectionCode.INVALID, text, "resume_tokens")
        self.checked_tokens(received)

    def checked_tokens(self, tokens: I32) -> I32:
        """The same tokens, checked.

        Raises:
            DoorError: a token id is outside the model's vocabulary.
        """
        vocabulary = self._model.vocabulary
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
            token = next(token for token in tokens if not 0 <= token < vocabulary)
            text = f"token id {token} is outside the vocabulary of {vocabulary}"
            raise DoorError(RejectionCode.INVALID, text, "prompt")
        return tokens

    def with_bad_tokens(self, settings: RequestSettings) -> RequestSettings:
        """The settings with the tokens of their bad words: as a text begins with them, and after a space.

        Raises:
            InvalidField: they have too many tokens.
        """
        if not settings.bad_words:
            return settings
        encode = self._model.tokenizer.encode
        bare = [word.strip(" ") or word for word in settings.bad_words]
        try:
            spelled = [tuple(encode(before + word, add_special_tokens=False)) for word in bare for before in ("", " ")]
        except (UnicodeEncodeError, TypeError):  # lone surrogates, which JSON can express
            raise InvalidField("bad_words", "are not valid Unicode text") from None
        words = [tokens for tokens in dict.fromkeys(spelled) if tokens]
        bad_tokens, bad_stops = i32(chain.from_iterable(words)), i32(accumulate(map(len, words)))
        if len(bad_tokens) > MOST_BAD_TOKENS:
            raise InvalidField("bad_words", f"have {len(bad_tokens)} tokens; at most {MOST_BAD_TOKENS} are allowed")
        return replace(settings, sampling=replace(settings.sampling, bad_tokens=bad_tokens, bad_stops=bad_stops))

    def _rendered(self, conversation: Conversation) -> str:
        try:
            return self._model.render(conversation.messages, conversation.functions)
        except ChatTemplateError as error:
            raise DoorError(RejectionCode.INVALID, str(error), error.field) from error

    def _encode_text(self, text: str, special: bool) -> I32:
        if len(text) > self._most_characters:
            text = f"a prompt of {len(text)} characters; at most {self._most_characters} are taken"
            raise DoorError(RejectionCode.TOO_LONG, text)
        tokenizer = self._model.tokenizer
        fewest = tokenizer.min_tokens(text)
        if fewest >= self._model.max_positions:
            text = too_long_text(fewest, None, self._model.max_positions, is_least=True)
            raise DoorError(RejectionCode.TOO_LONG, text)
        try:
            tokens = i32(tokenizer.encode(text, add_special_tokens=special))
        except (UnicodeEncodeError, TypeError) as error:  # lone surrogates, which JSON can express
            raise DoorError(RejectionCode.INVALID, "the prompt is not valid Unicode text", "prompt") from error
        has_all = tokenizer.max_token_id() < self._model.vocabulary
        return tokens if has_all else self.checked_tokens(tokens)  # a special token may have no embedding
