"""Lines are cut whole out of any blocks, and bad ones are told by number."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dispatcher.batches.input_lines import BadLine, InputLine, InputScan, input_lines, parse_line

ENDPOINT = "/v1/completions"


async def blocks_of(blocks: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for block in blocks:
        yield block


def cut(blocks: Sequence[bytes], most: int = 100, lines_read: int = 0, offset: int = 0) -> list[InputLine]:
    async def collect() -> list[InputLine]:
        return [line async for line in input_lines(blocks_of(blocks), most, lines_read, offset)]

    return asyncio.run(collect())


@given(st.lists(st.binary(max_size=12), max_size=8), st.lists(st.integers(1, 7)), st.booleans())
def test_lines_do_not_depend_on_blocks(texts: list[bytes], sizes: list[int], ends: bool) -> None:
    content = b"\n".join(text.replace(b"\n", b"") for text in texts) + (b"\n" if ends else b"")
    blocks, rest = [], content
    for size in sizes:
        blocks.append(rest[:size])
        rest = rest[size:]
    found = cut([*blocks, rest])
    wanted = [(number, text) for number, text in enumerate(content.split(b"\n"), start=1) if text.strip()]
    assert [(line.number, line.data) for line in found] == wanted
    for line in found:
        assert line.data is not None
        before = content[: line.stop]
        assert before.removesuffix(b"\n").endswith(line.data)
        # So a dispatcher that takes the job over goes on behind this line.
        later = cut([content[line.stop :]], 100, line.number, line.stop)
        assert later == [one for one in found if one.number > line.number]


@given(st.integers(1, 30))
def test_a_line_that_is_too_long_is_skipped_and_counted(block: int) -> None:
    content = b"a" * 8 + b"\n" + b"b" * 300 + b"\n" + b"c" * 8
    found = cut([content[start : start + block] for start in range(0, len(content), block)], most=16)
    assert [(line.number, line.data) for line in found] == [(1, b"a" * 8), (2, None), (3, b"c" * 8)]
    assert [line.stop for line in found] == [9, 310, 318]


def request(custom_id: object = "a", **others: object) -> bytes:
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"prompt": "x"}} | others
    ).encode()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"\xff\xfe", "invalid_json_line"),
        (b'{"custom_id": "a", "url": "/v1/completions", "body": ' + b"[" * 100_000, "invalid_json_line"),
        (b'{"custom_id": "a", "url": 5, "body": ' + b"[" * 100_000, "invalid_request_line"),
        (b"[]", "invalid_request_line"),
        (b'{"custom_id": "a"}', "invalid_request_line"),
        (request(7), "invalid_request_line"),
        (request(body=[1]), "invalid_request_line"),
        (request(""), "invalid_custom_id"),
        (request("x" * 513), "invalid_custom_id"),
        (request(method="GET"), "invalid_method"),
        (request(url="/v1/embeddings"), "mismatched_endpoint"),
        (None, "line_too_long"),
    ],
)
def test_what_is_no_request_is_told(text: bytes | None, code: str) -> None:
    with pytest.raises(BadLine) as bad:
        parse_line(InputLine(3, 9, text), ENDPOINT)
    assert bad.value.code == code


def test_a_request_keeps_its_body_as_it_came() -> None:
    line = parse_line(
        InputLine(1, 9, b'{"custom_id": "a", "url": "/v1/completions", "body": {"n": 1.50, "n": 2}}'), ENDPOINT
    )
    assert (line.custom_id, bytes(line.body), line.method) == ("a", b'{"n": 1.50, "n": 2}', "POST")


def test_a_custom_id_belongs_to_the_first_line_that_has_it() -> None:
    texts = [
        request("a"),
        b"{",
        request("a"),
        request("b", method="GET"),
        request("b"),
        request("c"),
        request("a", url=""),
    ]
    lines = [InputLine(number, 0, text) for number, text in enumerate(texts, start=1)]
    scan = InputScan(ENDPOINT)
    for line in lines:
        scan.add(line)
    scan.forget_ids()
    assert (scan.total, scan.bad_lines) == (7, 5)
    assert [(error.line, error.code) for error in scan.errors] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "invalid_method"),
        (5, "duplicate_custom_id"),
        (7, "mismatched_endpoint"),
    ]
    named = []
    for line in lines:
        try:
            named.append(scan.request(line).custom_id)
        except BadLine as bad:
            named.append(f"bad {bad.custom_id}")
    assert named == ["a", "bad None", "bad None", "bad b", "bad None", "c", "bad None"]
