"""Records as bytes: JSON, in which readers ignore fields that they do not know."""

from typing import TypeVar

import msgspec

R = TypeVar("R")


def encode_record(record: object) -> bytes:
    """The record's bytes."""
    return msgspec.json.encode(record)


def decode_record(data: bytes, kind: type[R]) -> R:
    """The record of type `kind` in `data`.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(data, type=kind)
