"""The output processor of one request: detokenises its tokens as they come and cuts the text at the first stop string.

Output that was not fetched yet is merged into one piece, so that a slow reader costs the memory of its text and tokens
once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from dunlin.messages.door import Delta, PromptLogprobs
from dunlin.messages.types import F32, I32, FinishReason, f32, i32
from dunlin.text.detokenizer import Detokenizer
from dunlin.text.stop_strings import StopMatcher


@dataclass(slots=True)
class OutputPiece:
    """New text and tokens of a request. `offsets[i]` is where token i's characters start in its whole text.

    `top_count[i]` entries of `top_token` and `top_logprob` belong to token i. `finish`, `detail`, `cached_tokens`
    and `prompt` are as in `Delta`.
    """

    text: str = ""
    tokens: I32 = field(default_factory=i32)
    offsets: I32 = field(default_factory=i32)
    logprobs: F32 = field(default_factory=f32)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)
    finish: FinishReason = FinishReason.RUNNING
    detail: str = ""
    cached_tokens: int = 0
    prompt: PromptLogprobs | None = None

    def extend(self, later: "OutputPiece") -> None:
        """Append the piece that follows this one."""
        self.text += later.text
        self.tokens.extend(later.tokens)
        self.offsets.extend(later.offsets)
        self.logprobs.extend(later.logprobs)
        self.top_count.extend(later.top_count)
        self.top_token.extend(later.top_token)
        self.top_logprob.extend(later.top_logprob)
        self.finish, self.detail = later.finish, later.detail
        self.cached_tokens = max(self.cached_tokens, later.cached_tokens)
        if later.prompt is not None:
            self.add_prompt(later.prompt)

    def add_prompt(self, later: PromptLogprobs) -> None:
        """Append log-probabilities of the prompt."""
        if self.prompt is None:
            self.prompt = PromptLogprobs(later.best)
        self.prompt.extend(later)


class OutputProcessor:
    """Owns one request's detokenizer, stop matcher and unfetched output, which `max_tokens` bounds.

    `stops` are the stop strings; the text ends before the first that occurs in what follows its first `min_tokens`
    tokens. `shown` are special tokens that have a text here.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        min_tokens: int = 0,
        shown: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._shown = shown
        self._unsearched = min_tokens
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._characters = 0
        self._piece = OutputPiece()

    @property
    def finish(self) -> FinishReason:
        """How the output ended; RUNNING: it has not."""
        return self._piece.finish

    def push(self, delta: Delta) -> bool:
        """Process new tokens; True if a stop string ended the text, so that the caller must abort the request."""
        if self._piece.finish is not FinishReason.RUNNING:
            return False
        self._append(delta)
        # The stop token (end of text, or one of the client's stop_token_ids) is not part of the text.
        seen = len(delta.tokens) - (1 if delta.finish is FinishReason.STOP else 0)
        for index, token in enumerate(delta.tokens):
            self._piece.offsets.append(self._characters)
            self._unsearched -= 1
            if index < seen and self._push_text(self._detokenizer.push(token) + self._shown.get(token, "")):
                self._drop_last(len(delta.tokens) - index - 1)
                self._piece.finish = FinishReason.STOP
                return True
        if delta.finish is not FinishReason.RUNNING:
            self._finish_text(delta.finish, delta.detail)
        return False

    def skip_received(self, tokens: I32) -> bool:
        """Process tokens whose text the client has already, without output; True as in `push`."""
        stopped = self.push(Delta(tokens))
        self._piece = OutputPiece(finish=self._piece.finish)
        return stopped

    def fail(self, detail: str) -> None:
        """End the output with an error; no effect if it has ended."""
        if self._piece.finish is FinishReason.RUNNING:
            self._finish_text(FinishReason.ERROR, detail)

    def drain(self) -> OutputPiece | None:
        """All output since the last call; None if there is none."""
        piece = self._piece
        if not (piece.text or piece.tokens or piece.prompt) and piece.finish is FinishReason.RUNNING:
            return None
        self._piece = OutputPiece(finish=piece.finish, detail=piece.detail)
        return piece

    def _append(self, delta: Delta) -> None:
        piece = self._piece
        piece.tokens.extend(delta.tokens)
        if delta.logprobs:  # rarely asked for, and this runs once per token
            piece.logprobs.extend(delta.logprobs)
            piece.top_count.extend(delta.top_count)
            piece.top_token.extend(delta.top_token)
            piece.top_logprob.extend(delta.top_logprob)
        if delta.prompt is not None:
            piece.add_prompt(delta.prompt)
        piece.cached_tokens = max(piece.cached_tokens, delta.cached_tokens)

    def _drop_last(self, tokens: int) -> None:
        """Drop the last tokens: they came in one delta with the one that ended the text."""
        piece = self._piece
        kept = len(piece.tokens) - tokens
        del piece.tokens[kept:]
        if piece.logprobs:
            del piece.logprobs[kept:]
            del piece.top_count[kept:]
            tops = sum(piece.top_count)
            del piece.top_token[tops:], piece.top_logprob[tops:]

    def _push_text(self, text: str) -> bool:
        self._characters += len(text)
        if self._unsearched >= 0:
            self._piece.text += text
            return False
        matched = self._matcher.push(text)
        self._piece.text += matched.text
        return matched.stopped

    def _finish_text(self, finish: FinishReason, detail: str) -> None:
        self._piece.finish = finish
        self._piece.detail = detail
        if self._push_text(self._detokenizer.finish()):
            self._piece.finish = finish if finish is not FinishReason.LENGTH else FinishReason.STOP
        else:
            self._piece.text += self._matcher.finish()
