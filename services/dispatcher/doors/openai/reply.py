"""Makes OpenAI's response bodies of output pieces: whole objects, stream chunks and errors. Knows no HTTP."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dunlin.messages.door import PromptLogprobs
from dunlin.messages.types import I32, FinishReason
from dunlin.text.tokenizer import Tokenizer
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.openai.prompt_reply import AnsweredPrompts, json_logprob
from services.dispatcher.doors.tools.call_parser import CallDelta, ParsedText, ToolCallParser

FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
Json = dict[str, Any]


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> Json:
    """The error object that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class OpenAIReply:
    """What all parts of one response share. `created` is in Unix seconds; `logprobs`: the client wants them, and so
    many likeliest tokens besides; None: it does not.

    `calls[i]` parses the tool calls of choice i; empty: there can be none. `named_call`: the client named the function.
    `prompts`: what is said of them; None: nothing.
    """

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: int | None
    calls: Sequence[ToolCallParser] = ()
    named_call: bool = False
    prompts: AnsweredPrompts | None = None

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


def _call_chunk(call: CallDelta) -> Json:
    """A part of a call in a stream: what names it comes in the first part alone."""
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _whole_calls(parts: Sequence[CallDelta]) -> list[Json]:
    calls: list[Json] = []
    for part in parts:
        if part.id:
            calls.append({"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}})
        calls[part.index]["function"]["arguments"] += part.arguments
    return calls


class CompletionReply(OpenAIReply):
    """Response bodies of /v1/completions."""

    __slots__ = ()

    def full_reply(self, pieces: list[OutputPiece], counts: Json) -> Json:
        """The whole response: piece i is choice i, `counts` the usage."""
        choices = [self._choice(index, piece) for index, piece in enumerate(pieces)]
        if self.prompts is not None and self.prompts.best is not None:
            for index, piece in enumerate(pieces):
                choices[index]["prompt_logprobs"] = self.prompts.logprobs(index, piece.prompt)
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
        text, logprobs = piece.text, None if self.logprobs is None else self._logprobs(piece)
        if self.prompts is not None and self.prompts.echo:
            text, logprobs = self._after_prompt(index, self.prompts, piece, logprobs)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": FINISH_REASONS.get(piece.finish),
        }

    def _after_prompt(
        self, index: int, prompts: AnsweredPrompts, piece: OutputPiece, logprobs: Json | None
    ) -> tuple[str, Json | None]:
        """The text and the log-probabilities of a piece, after those of the prompt if it is the choice's first."""
        prompt, is_first = prompts.spelled(index), prompts.begin(index)
        if logprobs is not None:
            logprobs["text_offset"] = [len(prompt.text) + offset for offset in logprobs["text_offset"]]
        if not is_first:
            return piece.text, logprobs
        if logprobs is None:
            return prompt.text + piece.text, None
        before = self._prompt_logprobs(prompts.tokens(index), prompt.offsets, piece.prompt)
        return prompt.text + piece.text, {name: [*before[name], *values] for name, values in logprobs.items()}

    def _prompt_logprobs(self, tokens: I32, offsets: Sequence[int], scores: PromptLogprobs | None) -> Json:
        """As `_logprobs`, of a prompt, whose first token has none."""
        scored = scores if scores is not None else PromptLogprobs(0)
        tops = scored.tops(self.logprobs or 0)
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [None, *map(json_logprob, scored.logprob)],
            "top_logprobs": [None, *({self._name(token): json_logprob(value) for token, value in top} for top in tops)],
            "text_offset": list(offsets),
        }

    def _logprobs(self, piece: OutputPiece) -> Json:
        return {
            "tokens": [self._name(token) for token in piece.tokens],
            "token_logprobs": [json_logprob(value) for value in piece.logprobs],
            "top_logprobs": [
                {self._name(token): json_logprob(value) for token, value in top} for top in self._tops(piece)
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
                "message": self._message(index, piece),
                "logprobs": self._logprobs(piece),
                "finish_reason": self._finish_reason(index, piece),
            }
            for index, piece in enumerate(pieces)
        ]
        whole = {**self._envelope("chat.completion", choices), "usage": counts}
        if self.prompts is not None:
            whole["prompt_logprobs"] = self.prompts.logprobs(0, pieces[0].prompt)
        return whole

    def first_chunks(self, index: int) -> list[Json]:
        """The chunk with the role `assistant`, which precedes the first text."""
        return [self._chunk(index, {"role": "assistant", "content": ""}, None, None)]

    def chunk(self, index: int, piece: OutputPiece) -> Json:
        """A stream chunk with a piece of choice `index`."""
        parsed = self._parsed(index, piece)
        delta: Json = {"content": parsed.content} if parsed.content else {}
        if parsed.calls:
            delta["tool_calls"] = [_call_chunk(one) for one in parsed.calls]
        return self._chunk(index, delta, self._logprobs(piece), self._finish_reason(index, piece))

    def _message(self, index: int, piece: OutputPiece) -> Json:
        parsed = self._parsed(index, piece)
        message: Json = {"role": "assistant", "content": parsed.content, "refusal": None}
        if parsed.calls:
            message |= {"content": parsed.content.strip() or None, "tool_calls": _whole_calls(parsed.calls)}
        return message

    def _parsed(self, index: int, piece: OutputPiece) -> ParsedText:
        if not self.calls:
            return ParsedText(piece.text)
        return self.calls[index].read(piece.text, piece.finish is not FinishReason.RUNNING)

    def _finish_reason(self, index: int, piece: OutputPiece) -> str | None:
        has_calls = bool(self.calls) and self.calls[index].calls > 0
        if has_calls and piece.finish is FinishReason.STOP and not self.named_call:
            return "tool_calls"
        return FINISH_REASONS.get(piece.finish)

    def usage_chunk(self, counts: Json) -> Json:
        """The last stream chunk, which has the usage and no choice."""
        return {**self._envelope("chat.completion.chunk", []), "usage": counts}

    def _chunk(self, index: int, delta: Json, logprobs: Json | None, reason: str | None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._envelope("chat.completion.chunk", [choice])

    def _logprobs(self, piece: OutputPiece) -> Json | None:
        if self.logprobs is None or not piece.tokens:
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
            "logprob": json_logprob(logprob),
            "bytes": list(self.tokenizer.token_bytes(token)),
        }
