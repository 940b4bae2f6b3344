"""What a helper process answers, as bytes: a head in JSON, then the columns of tokens.

The helper has read what clients sent, so its parent decodes values alone, never objects (no pickle).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import I32, RequestClass, SamplingParams, f32, i32
from services.dispatcher.admission.refusals import DoorError, MalformedRequest
from services.dispatcher.doors.generation.idempotency import RetryIdentity
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.doors.openai.request import ParsedRequest
from services.dispatcher.doors.preprocess.preprocessor import Preprocessed

LENGTH_BYTES = 8
"""Of the number that says how long the head is."""

PreprocessOutcome = Preprocessed | InvalidField | DoorError


def encode(outcome: PreprocessOutcome) -> list[bytes]:
    """The outcome of one call, in parts."""
    match outcome:
        case Preprocessed():
            return _parts(_preprocessed_to_json(outcome), (*outcome.prompts, outcome.again.resume_tokens))
        case InvalidField():
            return _parts({"bad_field": [outcome.name, outcome.text]}, ())
        case DoorError():
            return _parts({"refused": _refusal_to_json(outcome)}, ())


def decode(data: bytes | bytearray) -> PreprocessOutcome:
    """What `encode` was given.

    Raises:
        ValueError, KeyError, TypeError: bytes that it did not make.
    """
    view = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    head = json.loads(bytes(view[LENGTH_BYTES:start]))
    if "bad_field" in head:
        return InvalidField(*head["bad_field"])
    if "asked" not in head:
        return _refusal_from_json(head["refused"])
    return _preprocessed_from_json(head, _columns(view[start:], head["lengths"]))


def _parts(head: dict[str, Any], columns: Sequence[I32]) -> list[bytes]:
    # Columns within the settings are short, so lists of numbers do for them.
    text = json.dumps({**head, "lengths": [len(column) for column in columns]}, default=list).encode()
    return [len(text).to_bytes(LENGTH_BYTES, "little"), text, *(column.tobytes() for column in columns)]


def _columns(view: memoryview, lengths: Sequence[int]) -> list[I32]:
    columns, start = [], 0
    for length in lengths:
        column = i32()
        stop = start + length * column.itemsize
        column.frombytes(view[start:stop])
        columns.append(column)
        start = stop
    if start != len(view):
        raise ValueError(f"{len(view)} bytes of columns where {start} were announced")
    return columns


def _preprocessed_to_json(read: Preprocessed) -> dict[str, Any]:
    return {
        "asked": asdict(read.asked),
        "again": [read.again.idempotency_key, read.again.resume_request],
        "is_chat": read.is_chat,
        "refused": None if read.refused is None else _refusal_to_json(read.refused),
    }


def _preprocessed_from_json(head: Mapping[str, Any], columns: list[I32]) -> Preprocessed:
    *prompts, received = columns
    name, key = head["again"]
    settings = _settings_of(**head["asked"].pop("settings"))
    asked = replace(ParsedRequest(**head["asked"]), prompts=(), settings=settings)
    refused = None if head["refused"] is None else _refusal_from_json(head["refused"])
    return Preprocessed(asked, tuple(prompts), RetryIdentity(name, key, received), head["is_chat"], refused)


def _settings_of(
    sampling: dict[str, Any], stops: list[str], stop_ids: list[int], request_class: int, **others: Any
) -> RequestSettings:
    biases = i32(sampling.pop("bias_tokens")), f32(sampling.pop("bias_values"))
    return RequestSettings(
        SamplingParams(**sampling, bias_tokens=biases[0], bias_values=biases[1]),
        stops=tuple(stops),
        stop_ids=i32(stop_ids),
        request_class=RequestClass(request_class),
        **others,
    )


def _refusal_to_json(error: DoorError) -> list[Any]:
    return [isinstance(error, MalformedRequest), error.code, error.detail, error.field, error.retry_after_s]


def _refusal_from_json(plain: list[Any]) -> DoorError:
    is_malformed, code, detail, field, retry_after_s = plain
    return MalformedRequest(detail) if is_malformed else DoorError(RejectionCode(code), detail, field, retry_after_s)
