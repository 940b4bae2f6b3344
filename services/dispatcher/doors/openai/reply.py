"""Makes OpenAI's response bodies of output pieces: whole objects, stream chunks and errors. Knows no HTTP."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dunlin.messages.types import FinishReason
from dunlin.text.tokenizer import Tokenizer
from services.dispatcher.doors.generation.output import OutputPiece

MIN_LOGPROB = -9999.0
"""OpenAI's number for a token that is very unlikely."""
FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
Json = dict[str, Any]


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> Json:
    """The error object that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class OpenAIReply:
    """What all parts of one response share. `created` is in Unix seconds; `logprobs`: the client wants them."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _tops(self, piece: OutputPiece) -> Iterator[list[tuple[int, float]]]:
        """For each token of the piece the likeliest (token, log-probability) pairs, best first."""
        start = 0
        for count in piece.top_count:
            stop = start + count
            yield list(zip(piece.top_token[start:stop], piece.top_logprob[start:stop], strict=True))
            start = stop

    def _name(self, token: int) -> str:
        """A token's text; one that is not whole characters is written as its bytes."""
        text = self.tokenizer.token_text(token)
        if "\ufffd" not in text:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.tokenizer.token_bytes(token))


def _json_logprob(logprob: float) -> float:
    """At least `MIN_LOGPROB`: an excluded token's log-probability is -infinity, which JSON cannot express."""
    return max(logprob, MIN_LOGPROB)


class CompletionReply(OpenAIReply):
    """Response bodies of /v1/completions."""

    __slots__ = ()

    def full_reply(self, pieces: list[OutputPiece], counts: Json) -> Json:
        """The whole response: piece i is choice i, `counts` the usage."""
        choices = [self._choice(index, piece) for index, piece in enumerate(pieces)]
        return {**self._envelope("text_completion", choices), "usage": counts}

    def first_chunks(self, index: int) -> list[Json]:
        """Chunks before the first text: none."""
        return []

    def chunk(self, index: int, piece: OutputPiece) -> Json:
        """A stream chunk with a piece of choice `index`."""
        return self._envelope("text_completion", [self._choice(index, piece)])

    def usage_chunk(self, counts: Json) -> Json:
        """The last stream chunk, which has the usage and no choice."""
        return {**self._envelope("text_completion", []), "usage": counts}

    def _choice(self, index: int, piece: OutputPiece) -> Json:
        return {
            "index": index,
            "text": piece.text,
            "logprobs": self._logprobs(piece) if self.logprobs else None,
            "finish_reason": FINISH_REASONS.get(piece.finish),
        }

    def _logprobs(self, piece: OutputPiece) -> Json:
        return {
            "tokens": [self._name(token) for token in piece.tokens],
            "token_logprobs": [_json_logprob(value) for value in piece.logprobs],
            "top_logprobs": [
                {self._name(token): _json_logprob(value) for token, value in top} for top in self._tops(piece)
            ],
            "text_offset": list(piece.offsets),
        }


class ChatReply(OpenAIReply):
    """Response bodies of /v1/chat/completions."""

    __slots__ = ()

    def full_reply(self, pieces: list[OutputPiece], counts: Json) -> Json:
        """The whole response: piece i is choice i, `counts` the usage."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": piece.text, "refusal": None},
                "logprobs": self._logprobs(piece),
                "finish_reason": FINISH_REASONS.get(piece.finish),
            }
            for index, piece in enumerate(pieces)
        ]
        return {**self._envelope("chat.completion", choices), "usage": counts}

    def first_chunks(self, index: int) -> list[Json]:
        """The chunk with the role `assistant`, which precedes the first text."""
        return [self._chunk(index, {"role": "assistant", "content": ""}, None, None)]

    def chunk(self, index: int, piece: OutputPiece) -> Json:
        """A stream chunk with a piece of choice `index`."""
        delta = {"content": piece.text} if piece.text else {}
        return self._chunk(index, delta, self._logprobs(piece), FINISH_REASONS.get(piece.finish))

    def usage_chunk(self, counts: Json) -> Json:
        """The last stream chunk, which has the usage and no choice."""
        return {**self._envelope("chat.completion.chunk", []), "usage": counts}

    def _chunk(self, index: int, delta: Json, logprobs: Json | None, reason: str | None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._envelope("chat.completion.chunk", [choice])

    def _logprobs(self, piece: OutputPiece) -> Json | None:
        if not self.logprobs or not piece.tokens:
            return None
        rows = zip(piece.tokens, piece.logprobs, self._tops(piece), strict=True)
        return {
            "content": [
                {**self._entry(token, value), "top_logprobs": [self._entry(*one) for one in top]}
                for token, value, top in rows
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> Json:
        return {
            "token": self._name(token),
            "logprob": _json_logprob(logprob),
            "bytes": list(self.tokenizer.token_bytes(token)),
        }
