"""Records as bytes: JSON, in which readers ignore fields that they do not know."""

from typing import TypeVar

import msgspec

R = TypeVar("R")


class UnreadableRecord(ValueError):
    """Bytes that are no such record. Readers of many records leave it out."""


def encode_record(record: object) -> bytes:
    """The record's bytes."""
    return msgspec.json.encode(record)


def decode_record(data: bytes, kind: type[R]) -> R:
    """The record of type `kind` in `data`.

    Raises:
        UnreadableRecord: it is none, or one of a later version that this one does not understand.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRecord(str(error)) from error
