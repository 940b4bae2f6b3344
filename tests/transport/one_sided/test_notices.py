"""Notices and their bytes: each survives, and damage never makes one of another token."""

import random

import pytest

from dunlin.messages.types import Region
from dunlin.transport.one_sided.notices import (
    ChunksDrained,
    ChunkWritten,
    LaneGranted,
    Notice,
    RegionFinished,
    WriteAbandoned,
    WriteRequested,
    decode_notice,
    encode_notice,
)
from dunlin.transport.payload import PayloadError, RegionHeader


def test_notices_survive_their_bytes_and_damage_never_makes_one_of_another_token() -> None:
    token = bytes(range(16))
    payload = RegionHeader(token, 3, 9, Region(1, 2, 3, 4), "bfloat16", b"c" * 16, 77, -5)
    short: list[Notice] = [
        LaneGranted(token, 3),
        ChunkWritten(token, 9),
        ChunksDrained(token, 4),
        RegionFinished(token, 1),
        WriteAbandoned(token),
    ]
    draw = random.Random(5)
    for notice in [WriteRequested(payload), *short]:
        data = encode_notice(notice)
        assert decode_notice(data) == notice
        for _ in range(300):
            damaged = bytearray(data[: draw.choice((len(data), len(data), draw.randrange(len(data))))])
            if damaged:
                damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            try:
                found = decode_notice(bytes(damaged))
            except PayloadError:
                continue
            assert encode_notice(found)[: len(damaged)] == bytes(damaged)
    for data in (b"", b"z" * 25, b"b", b"g" + token):
        with pytest.raises(PayloadError):
            decode_notice(data)


@pytest.mark.parametrize(
    ("notice", "data"),
    [
        (LaneGranted(b"t" * 16, 3), b"g" + b"t" * 16 + b"\x03" + bytes(7)),
        (ChunkWritten(b"t" * 16, 256), b"c" + b"t" * 16 + b"\x00\x01" + bytes(6)),
        (ChunksDrained(b"t" * 16, 1), b"t" + b"t" * 16 + b"\x01" + bytes(7)),
        (RegionFinished(b"t" * 16, 0), b"o" + b"t" * 16 + bytes(8)),
        (WriteAbandoned(b"t" * 16), b"l" + b"t" * 16 + bytes(8)),
    ],
)
def test_a_short_notice_is_its_kind_the_token_and_a_number(notice: Notice, data: bytes) -> None:
    """Bytes that processes of other versions read."""
    assert encode_notice(notice) == data
    assert decode_notice(data) == notice


def test_a_request_to_write_is_the_whole_header_without_its_length() -> None:
    payload = RegionHeader(b"t" * 16, 3, 9, Region(1, 2, 3, 4), "bfloat16", b"c", 77, -5)
    assert encode_notice(WriteRequested(payload)) == b"b" + payload.encode()[2:]
    assert WriteRequested(payload).token == b"t" * 16
