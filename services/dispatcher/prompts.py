"""From what a client sent to the prompt's tokens: what the model can hold, long texts in threads of their own.

Owns those threads. Knows no request and no core.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dunlin.limits import MOST_PROMPT_CHARACTERS
from dunlin.messages.door import Rejection
from dunlin.messages.public import ChatMessage
from dunlin.messages.types import I32, i32
from dunlin.text.chat import ChatError
from services.dispatcher.model import Model
from services.dispatcher.refusals import DoorError, too_long

Prompt = str | I32 | tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Texts up to `inline_characters` are tokenised at once, longer ones in a thread."""

    inline_characters: int = 4_096
    most_characters: int = MOST_PROMPT_CHARACTERS
    tokenizer_threads: int = 2
    most_tokenizing: int = 64


class Prompts:
    """Turns prompts into tokens, and refuses what the model cannot take."""

    def __init__(self, model: Model, limits: PromptLimits) -> None:
        self._model = model
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.tokenizer_threads, thread_name_prefix="tokenizer")
        self._tokenizing = 0

    @property
    def tokenizing(self) -> int:
        """Long prompts that are in a thread, or wait for one."""
        return self._tokenizing

    async def tokens_of(self, prompt: Prompt) -> I32:
        """The prompt's tokens. A long text is tokenised in a thread while the doors go on.

        Raises:
            DoorError: no such tokens, messages that the template refuses, too long, or too many long ones at once.
        """
        if isinstance(prompt, str):
            tokens = await self._encode(prompt, special=True)
        elif isinstance(prompt, tuple):
            tokens = await self._encode(self._rendered(prompt), special=False)
        else:
            self.check_length(prompt, None)
            tokens = self.known(prompt)
        if not tokens:
            raise DoorError(Rejection.INVALID, "the prompt is empty: send at least one token", "prompt")
        return tokens

    def check_length(self, tokens: I32, max_tokens: int | None) -> None:
        """Raises DoorError for what the model cannot hold."""
        most = self._model.max_positions
        if len(tokens) + (max_tokens or 1) > most:
            raise DoorError(Rejection.TOO_LONG, too_long(len(tokens), max_tokens, most))

    def known(self, tokens: I32) -> I32:
        """The same tokens. Raises DoorError for one that the model does not have."""
        for token in tokens:
            if not 0 <= token < self._model.vocabulary:
                text = f"token id {token} is outside the vocabulary of {self._model.vocabulary}"
                raise DoorError(Rejection.INVALID, text, "prompt")
        return tokens

    def shut(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _rendered(self, messages: tuple[ChatMessage, ...]) -> str:
        try:
            return self._model.render(messages)
        except ChatError as error:
            raise DoorError(Rejection.INVALID, str(error), error.field) from error

    async def _encode(self, text: str, special: bool) -> I32:
        limits = self._limits
        if len(text) > limits.most_characters:
            text = f"a prompt of {len(text)} characters; at most {limits.most_characters} are taken"
            raise DoorError(Rejection.TOO_LONG, text)
        if len(text) <= limits.inline_characters:
            return self._encode_now(text, special)
        if self._tokenizing >= limits.most_tokenizing:
            text = f"{self._tokenizing} long prompts are being tokenised already, the most that may"
            raise DoorError(Rejection.FULL, text, retry_after_s=1.0)
        self._tokenizing += 1
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, self._encode_now, text, special)
        job.add_done_callback(self._encoded)
        # Shielded: a client that leaves does not stop its thread, and counts until that is done.
        return await asyncio.shield(job)

    def _encoded(self, job: "asyncio.Future[I32]") -> None:
        self._tokenizing -= 1
        if not job.cancelled():
            job.exception()  # seen, in case nobody waits for it any more

    def _encode_now(self, text: str, special: bool) -> I32:
        try:
            return i32(self._model.tokenizer.encode(text, add_special_tokens=special))
        except (UnicodeEncodeError, TypeError) as error:  # lone surrogates, which JSON can spell
            raise DoorError(Rejection.INVALID, "the prompt is not valid Unicode text", "prompt") from error
