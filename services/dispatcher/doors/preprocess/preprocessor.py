"""Preprocesses one request body: parses it, checks every field, and encodes its prompts as tokens.

The same code runs on the event loop for small bodies and in a helper process for large ones (`pool.py` chooses).
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from dunlin.limits import brief_repr
from dunlin.messages.types import I32
from services.dispatcher.admission.refusals import DoorError, MalformedRequest
from services.dispatcher.doors.generation.idempotency import NEW_REQUEST, RetryIdentity
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.openai.request import ParsedRequest, parse_chat, parse_completion
from services.dispatcher.doors.preprocess.grpc_request import parse_generate


class BodyKind(IntEnum):
    """The format of a body: that of one of OpenAI's paths, or gRPC's GenerateRequest."""

    COMPLETION = 1
    CHAT = 2
    GENERATE = 3


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
        request, is_chat = replace(parsed, prompts=()), isinstance(parsed.prompts[0], tuple)
        if parsed.model not in (None, self._model.name):
            return Preprocessed(request, (), retry, is_chat)
        try:
            prompts = tuple(self._prompts.encode(prompt) for prompt in parsed.prompts)
            for tokens in prompts:
                self._prompts.check_length(tokens, parsed.settings.max_tokens)
        except DoorError as error:
            return Preprocessed(request, (), retry, is_chat, error.with_traceback(None))
        return Preprocessed(request, prompts, retry, is_chat)


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
