"""The header before a region's bytes: what it was made of, and what is none."""

import struct
from dataclasses import replace
from typing import Any

import pytest

from dunlin.messages.types import Region
from dunlin.transport.payload import HEADER_MOST_BYTES, LENGTH, PayloadError, RegionHeader, decode_header


@pytest.mark.parametrize("data", [b"", b"x" * 40, bytes(120), b"dkp1" + bytes(300)])
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode_header(data)


def test_a_header_says_what_it_was_made_of() -> None:
    payload = RegionHeader(b"t" * 16, 3, 9, Region(1, 2, 3, 4), "bfloat16", b"c" * 16, 77, -5)
    data = payload.encode()
    assert decode_header(data[LENGTH.size :]) == payload
    with pytest.raises(PayloadError):
        replace(payload, token=b"short").encode()


HEADER = RegionHeader(b"t" * 16, 3, 9, Region(1, 2, 3, 4), "bf16", b"ch", 77, -5)


def test_the_bytes_of_a_header_stay_what_other_versions_read() -> None:
    numbers = (3, 9, 1, 2, 3, 4, 77, -5)
    plain = b"dkp1" + b"t" * 16 + struct.pack("<8q", *numbers) + b"\x04\x02" + b"bf16" + b"ch"
    assert HEADER.encode() == struct.pack("<H", len(plain)) + plain


@pytest.mark.parametrize(
    "change", [{"token": b"t" * 15}, {"token": b"t" * 17}, {"kv_dtype": "x" * 65}, {"chain": b"c" * 65}]
)
def test_a_header_with_parts_of_another_length_is_not_made(change: dict[str, Any]) -> None:
    with pytest.raises(PayloadError, match="a token of another length than 16 bytes"):
        replace(HEADER, **change).encode()


def test_the_longest_name_and_chain_fit() -> None:
    longest = replace(HEADER, kv_dtype="x" * 64, chain=b"c" * 64)
    data = longest.encode()[LENGTH.size :]
    assert len(data) <= HEADER_MOST_BYTES
    assert decode_header(data) == longest


def test_a_header_cut_short_or_with_more_behind_it_is_refused() -> None:
    data = HEADER.encode()[LENGTH.size :]
    for damaged in (data[:-1], data + b"\0", b"dkp2" + data[4:]):
        with pytest.raises(PayloadError, match="not a header of this version"):
            decode_header(damaged)
    with pytest.raises(PayloadError, match="a header of 257 bytes"):
        decode_header(data + bytes(257 - len(data)))
    with pytest.raises(PayloadError, match="the type's name is no text"):
        decode_header(data.replace(b"bf16", b"\xff\xfe\xfd\xfc"))


def test_the_identity_covers_what_the_bytes_are_and_nothing_of_their_journey() -> None:
    same = replace(HEADER, token=b"u" * 16, handle=8, generation=8, length_bytes=8, checksum=8)
    assert same.identity == HEADER.identity
    others: list[dict[str, Any]] = [{"region": Region(0, 2, 3, 4)}, {"kv_dtype": "fp32"}, {"chain": b"dh"}]
    assert len({HEADER.identity, *(replace(HEADER, **change).identity for change in others)}) == 4
