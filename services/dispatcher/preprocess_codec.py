"""What a helper process answers, as bytes: a head in JSON, then the columns of tokens.

The helper has read what clients sent, so its parent decodes values alone, never objects (no pickle).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dunlin.limits import BadField
from dunlin.messages.door import Rejection
from dunlin.messages.types import I32, RequestClass, Sampling, f32, i32
from services.dispatcher.again import Again
from services.dispatcher.openai_request import Asked
from services.dispatcher.preprocess import Preprocessed
from services.dispatcher.refusals import DoorError, Malformed
from services.dispatcher.settings import Settings

LENGTH_BYTES = 8
"""Of the number that says how long the head is."""

Outcome = Preprocessed | BadField | DoorError


def encode(outcome: Outcome) -> list[bytes]:
    """The outcome of one call, in parts."""
    match outcome:
        case Preprocessed():
            return _parts(_read_to_plain(outcome), (*outcome.prompts, outcome.again.received))
        case BadField():
            return _parts({"bad_field": [outcome.name, outcome.text]}, ())
        case DoorError():
            return _parts({"refused": _refused_to_plain(outcome)}, ())


def decode(data: bytes | bytearray) -> Outcome:
    """What `encode` was given.

    Raises:
        ValueError, KeyError, TypeError: bytes that it did not make.
    """
    view = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    head = json.loads(bytes(view[LENGTH_BYTES:start]))
    if "bad_field" in head:
        return BadField(*head["bad_field"])
    if "asked" not in head:
        return _refused_of(head["refused"])
    return _read_of(head, _columns(view[start:], head["lengths"]))


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


def _read_to_plain(read: Preprocessed) -> dict[str, Any]:
    return {
        "asked": asdict(read.asked),
        "again": [read.again.name, read.again.key],
        "is_chat": read.is_chat,
        "refused": None if read.refused is None else _refused_to_plain(read.refused),
    }


def _read_of(head: Mapping[str, Any], columns: list[I32]) -> Preprocessed:
    *prompts, received = columns
    name, key = head["again"]
    settings = _settings_of(**head["asked"].pop("settings"))
    asked = replace(Asked(**head["asked"]), prompts=(), settings=settings)
    refused = None if head["refused"] is None else _refused_of(head["refused"])
    return Preprocessed(asked, tuple(prompts), Again(name, key, received), head["is_chat"], refused)


def _settings_of(
    sampling: dict[str, Any], stops: list[str], stop_ids: list[int], request_class: int, **others: Any
) -> Settings:
    biases = i32(sampling.pop("bias_tokens")), f32(sampling.pop("bias_values"))
    return Settings(
        Sampling(**sampling, bias_tokens=biases[0], bias_values=biases[1]),
        stops=tuple(stops),
        stop_ids=i32(stop_ids),
        request_class=RequestClass(request_class),
        **others,
    )


def _refused_to_plain(error: DoorError) -> list[Any]:
    return [isinstance(error, Malformed), error.code, error.detail, error.field, error.retry_after_s]


def _refused_of(plain: list[Any]) -> DoorError:
    is_malformed, code, detail, field, retry_after_s = plain
    return Malformed(detail) if is_malformed else DoorError(Rejection(code), detail, field, retry_after_s)
