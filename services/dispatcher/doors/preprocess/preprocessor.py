"""From the bytes of one call to what it asks: parsed, every field checked, prompts as tokens.

The same code runs on the event loop for small calls and in a helper process for large ones (`intake.py` chooses).
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
    """What the bytes are: a body of one of OpenAI's paths, or a GenerateRequest of gRPC."""

    COMPLETION = 1
    CHAT = 2
    GENERATE = 3


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """What a client asks, checked. `prompts` are the tokens; `asked.prompts` is empty: the text is not kept.

    A call that names another model has no tokens: this model's tokenizer says nothing about it. `refused`: the model
    cannot take a prompt of it; metrics and the access log tell what was asked all the same.
    """

    asked: ParsedRequest
    prompts: tuple[I32, ...]
    again: RetryIdentity = NEW_REQUEST
    is_chat: bool = False
    refused: DoorError | None = None

    def raise_if_refused(self) -> None:
        """Raise DoorError for prompts that the model cannot take."""
        if self.refused is not None:
            raise self.refused


class Preprocessor:
    """Reads calls for one model."""

    def __init__(self, model: ServedModel, prompts: PromptEncoder) -> None:
        self._model = model
        self._prompts = prompts

    def read(self, kind: BodyKind, data: bytes) -> Preprocessed:
        """The call in `data`.

        Raises:
            BadField: a field that cannot be taken, by name.
            Malformed: bytes that are no such message.
        """
        asked, again = _asked_of(kind, data)
        bare, is_chat = replace(asked, prompts=()), isinstance(asked.prompts[0], tuple)
        if asked.model not in (None, self._model.name):
            return Preprocessed(bare, (), again, is_chat)
        try:
            prompts = tuple(self._prompts.encode(prompt) for prompt in asked.prompts)
            for tokens in prompts:
                self._prompts.check_length(tokens, asked.settings.max_tokens)
        except DoorError as error:
            return Preprocessed(bare, (), again, is_chat, error.with_traceback(None))
        return Preprocessed(bare, prompts, again, is_chat)


def read_json(data: bytes) -> Any:
    """A body as JSON, strictly: no NaN, no Infinity, no name twice in one object.

    Raises:
        Malformed: it is none.
    """
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError as error:
        raise MalformedRequest(
            "the body is not valid JSON here: too many objects and lists inside each other"
        ) from error
    except ValueError as error:
        # Python's own text about a long number speaks of Python.
        said = "a whole number has thousands of digits" if "int_max_str_digits" in str(error) else error
        raise MalformedRequest(f"the body is not valid JSON: {said}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one name, JSON's readers take either: which of them is meant cannot be known."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = Counter(name for name, _ in pairs)
        raise ValueError(f"an object has {brief_repr(names.most_common(1)[0][0])} more than once")
    return made


def _no_constant(spelled: str) -> None:
    raise ValueError(f"{spelled} is no JSON number")


def _asked_of(kind: BodyKind, data: bytes) -> tuple[ParsedRequest, RetryIdentity]:
    if kind is BodyKind.GENERATE:
        return parse_generate(data)
    body: Mapping[str, Any] = read_json(data)
    return (parse_chat(body) if kind is BodyKind.CHAT else parse_completion(body)), NEW_REQUEST
