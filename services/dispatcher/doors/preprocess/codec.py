"""The answer of a helper process as bytes: a header in JSON, then the columns of tokens.

The helper has processed untrusted bytes, so its parent decodes plain values only, never objects (no pickle).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import I32, Grammar, GrammarKind, RequestClass, SamplingParams, f32, i32
from services.dispatcher.admission.refusals import DoorError, MalformedRequest
from services.dispatcher.doors.generation.idempotency import RetryIdentity
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.doors.openai.request import ParsedRequest
from services.dispatcher.doors.preprocess.preprocessor import Preprocessed
from services.dispatcher.doors.tools.request import ToolUse

LENGTH_BYTES = 8
"""Bytes of the number (little endian) that says how long the header is."""

_SAMPLING_COLUMNS: dict[str, Any] = {
    "bias_tokens": i32, "bias_values": f32, "allowed_tokens": i32, "bad_tokens": i32, "bad_stops": i32,
}  # fmt: skip

PreprocessOutcome = Preprocessed | InvalidField | DoorError


def encode(outcome: PreprocessOutcome) -> list[bytes]:
    """The outcome of one body, in parts that are to be joined."""
    match outcome:
        case Preprocessed():
            return _parts(_preprocessed_to_json(outcome), (*outcome.prompts, outcome.retry.resume_tokens))
        case InvalidField():
            return _parts({"bad_field": [outcome.name, outcome.text]}, ())
        case DoorError():
            return _parts({"refused": _refusal_to_json(outcome)}, ())


def decode(data: bytes | bytearray) -> PreprocessOutcome:
    """The outcome that `encode` was given.

    Raises:
        ValueError, KeyError, TypeError: the bytes are not from `encode`.
    """
    view = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    header = json.loads(bytes(view[LENGTH_BYTES:start]))
    if "bad_field" in header:
        return InvalidField(*header["bad_field"])
    if "request" not in header:
        return _refusal_from_json(header["refused"])
    return _preprocessed_from_json(header, _columns(view[start:], header["lengths"]))


def _parts(header: dict[str, Any], columns: Sequence[I32]) -> list[bytes]:
    # Columns within the settings are short: JSON lists will do for them (`default=list`).
    text = json.dumps({**header, "lengths": [len(column) for column in columns]}, default=list).encode()
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


def _preprocessed_to_json(preprocessed: Preprocessed) -> dict[str, Any]:
    refused = preprocessed.refused
    return {
        "request": asdict(preprocessed.request),
        "retry": [
            preprocessed.retry.idempotency_key,
            preprocessed.retry.resume_request,
            preprocessed.retry.resume_scored,
        ],
        "is_chat": preprocessed.is_chat,
        "refused": None if refused is None else _refusal_to_json(refused),
    }


def _preprocessed_from_json(header: Mapping[str, Any], columns: list[I32]) -> Preprocessed:
    *prompts, resume_tokens = columns
    idempotency_key, resume_request, resume_scored = header["retry"]
    retry = RetryIdentity(idempotency_key, resume_request, resume_tokens, resume_scored)
    settings = _settings_of(**header["request"].pop("settings"))
    asked = header["request"].pop("tools")
    tools = None if asked is None else ToolUse(**{**asked, "functions": ()})
    request = replace(ParsedRequest(**header["request"]), prompts=(), settings=settings, tools=tools)
    refused = None if header["refused"] is None else _refusal_from_json(header["refused"])
    return Preprocessed(request, tuple(prompts), retry, header["is_chat"], refused)


def _settings_of(
    sampling: dict[str, Any],
    stops: list[str],
    stop_ids: list[int],
    request_class: int,
    bad_words: list[str],
    **others: Any,
) -> RequestSettings:
    columns = {name: make(sampling.pop(name)) for name, make in _SAMPLING_COLUMNS.items()}
    asked = sampling.pop("grammar")
    grammar = None if asked is None else Grammar(GrammarKind(asked["kind"]), asked["text"])
    return RequestSettings(
        SamplingParams(**sampling, **columns, grammar=grammar),
        stops=tuple(stops),
        stop_ids=i32(stop_ids),
        request_class=RequestClass(request_class),
        bad_words=tuple(bad_words),
        **others,
    )


def _refusal_to_json(error: DoorError) -> list[Any]:
    return [isinstance(error, MalformedRequest), error.code, error.detail, error.field, error.retry_after_s]


def _refusal_from_json(values: list[Any]) -> DoorError:
    is_malformed, code, detail, field, retry_after_s = values
    return MalformedRequest(detail) if is_malformed else DoorError(RejectionCode(code), detail, field, retry_after_s)
