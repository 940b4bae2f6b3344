"""Preprocesses one request body: parses it, checks every field, and encodes its prompts as tokens.

The same code runs on the event loop for small bodies and in a helper process for large ones (`pool.py` chooses).
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from dunlin.limits import InvalidField, brief_repr, check_grammar
from dunlin.messages.types import I32
from services.dispatcher.admission.refusals import DoorError, MalformedRequest
from services.dispatcher.doors.generation.idempotency import NEW_REQUEST, RetryIdentity
from services.dispatcher.doors.generation.prompts import Conversation, PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.openai.request import ParsedRequest, parse_chat, parse_completion
from services.dispatcher.doors.preprocess.grpc_request import parse_generate
from services.dispatcher.doors.tools.formats import call_grammar
from services.dispatcher.doors.tools.request import ToolUse


class BodyKind(IntEnum):
    """The format of a body: that of one of OpenAI's paths, gRPC's GenerateRequest, or a grammar to compile."""

    COMPLETION = 1
    CHAT = 2
    GENERATE = 3
    GRAMMAR = 4


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """A checked request. `prompts` are its tokens; `request.prompts` is empty: the text is not kept.

    A request that names another model has no tokens: this model's tokenizer does not apply. `refused`: the model cannot
    process a prompt; the request is kept for the metrics and the access log.
    """

    request: ParsedRequest
    prompts: tuple[I32, ...]
    retry: RetryIdentity = NEW_REQUEST
    is_chat: bool = False
    refused: DoorError | None = None

    def raise_if_refused(self) -> None:
        """Raise the DoorError of a prompt that the model cannot process, if there is one."""
        if self.refused is not None:
            raise self.refused


class Preprocessor:
    """Preprocesses bodies for one model."""

    def __init__(self, model: ServedModel, prompts: PromptEncoder) -> None:
        self._model = model
        self._prompts = prompts

    def read(self, kind: BodyKind, data: bytes) -> Preprocessed:
        """The request in `data`.

        Raises:
            InvalidField: a field's value is not allowed.
            MalformedRequest: the bytes cannot be parsed.
        """
        parsed, retry = _parse(kind, data)
        is_chat = isinstance(parsed.prompts[0], tuple | Conversation)
        request = replace(parsed, prompts=(), tools=_without_functions(parsed.tools))
        if self._model.why_unknown(parsed.model):
            return Preprocessed(request, (), retry, is_chat)
        settings = replace(request.settings, adapter=self._model.adapter_of(parsed.model))
        request = replace(request, settings=self._prompts.with_bad_tokens(settings))
        if parsed.tools is not None:
            request = self._with_call_grammar(request, parsed.tools)
        try:
            prompts = tuple(self._prompts.encode(prompt) for prompt in parsed.prompts)
            for tokens in prompts:
                self._prompts.check_length(tokens, parsed.settings.max_tokens)
        except DoorError as error:
            return Preprocessed(request, (), retry, is_chat, error.with_traceback(None))
        return Preprocessed(request, prompts, retry, is_chat)

    def _with_call_grammar(self, request: ParsedRequest, tools: ToolUse) -> ParsedRequest:
        """The request, whose output is a call where one is required.

        Raises:
            InvalidField: the model calls no tools, or the grammar is too large.
        """
        kind = self._model.tool_format
        if kind is None:
            raise InvalidField("tools", "the model's chat template writes no tool calls in a format that is known here")
        if not tools.is_required:
            return request
        marks = self._model.tokenizer.special_token
        grammar = call_grammar(kind, tools.callable_functions, tools.is_parallel and not tools.named, marks)
        check_grammar("tools", grammar)
        sampling = replace(request.settings.sampling, grammar=grammar)
        return replace(request, settings=replace(request.settings, sampling=sampling), grammar_field="tools")


def _without_functions(tools: ToolUse | None) -> ToolUse | None:
    """What the answer is parsed by: the functions are in the prompt."""
    return None if tools is None else replace(tools, functions=())


def read_json(data: bytes) -> Any:
    """A body as JSON, strictly: no NaN, no Infinity, no name twice in one object.

    Raises:
        MalformedRequest: the body is not such JSON.
    """
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError as error:
        raise MalformedRequest(
            "the body is not valid JSON here: too many objects and lists inside each other"
        ) from error
    except ValueError as error:
        # Python's own text about a long number names a function of Python.
        text = "a whole number has thousands of digits" if "int_max_str_digits" in str(error) else error
        raise MalformedRequest(f"the body is not valid JSON: {text}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate names: of two values, JSON parsers differ in which one they take."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = Counter(name for name, _ in pairs)
        raise ValueError(f"an object has {brief_repr(names.most_common(1)[0][0])} more than once")
    return made


def _no_constant(spelled: str) -> None:
    raise ValueError(f"{spelled} is no JSON number")


def _parse(kind: BodyKind, data: bytes) -> tuple[ParsedRequest, RetryIdentity]:
    if kind is BodyKind.GENERATE:
        return parse_generate(data)
    body: Mapping[str, Any] = read_json(data)
    return (parse_chat(body) if kind is BodyKind.CHAT else parse_completion(body)), NEW_REQUEST
