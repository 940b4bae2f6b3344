"""Bodies: JSON that says so, compressed or not; everything else is refused with what to send."""

import gzip
import json
import tracemalloc
import zlib

import aiohttp
import pytest

from services.dispatcher.doors.http.bodies import inflate
from services.dispatcher.doors.http.config import HttpConfig
from services.dispatcher.doors.openai.errors import HttpError
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors

BODY = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
PATH = "/v1/completions"


async def post(cluster: Doors, data: bytes, **headers: str) -> tuple[int, dict[str, str], dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
        session.post(cluster.url + PATH, data=data, headers=named) as answer,
    ):
        said = json.loads(await answer.text())
        return answer.status, said.get("error", {}), dict(answer.headers)


SIMPLE = ("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data; a=b", "")


def test_types_that_a_page_may_send_without_asking_are_415() -> None:
    async def test(cluster: Doors) -> None:
        for given in SIMPLE:
            status, error, headers = await post(cluster, BODY, **({"Content_Type": given} if given else {}))
            assert (status, error["code"], headers["Accept"]) == (415, "unsupported_media_type", "application/json")
            assert "send Content-Type: application/json (curl: -H 'Content-Type: application/json')" in error["message"]
        assert cluster.instance.placed == []

    with_doors(test)


def test_json_is_accepted_however_its_type_is_written() -> None:
    async def test(cluster: Doors) -> None:
        for given in ("application/json", "Application/JSON; charset=utf-8", "application/json;"):
            assert (await post(cluster, BODY, Content_Type=given))[0] == 200

    with_doors(test)


BARE = zlib.compressobj(wbits=-zlib.MAX_WBITS)
BARE_DEFLATE = BARE.compress(BODY) + BARE.flush()


COMPRESSED = (
    ("gzip", gzip.compress(BODY)),
    ("x-gzip", gzip.compress(BODY)),
    ("GZIP", gzip.compress(BODY)),
    ("deflate", zlib.compress(BODY)),
    ("deflate", BARE_DEFLATE),
    ("identity", BODY),
    ("", BODY),
)


def test_compressed_bodies_are_read() -> None:
    async def test(cluster: Doors) -> None:
        for encoding, data in COMPRESSED:
            status, _, _ = await post(cluster, data, Content_Type="application/json", Content_Encoding=encoding)
            assert status == 200, encoding

    with_doors(test)


BOMB = gzip.compress(b" " * 3_000_000)


@pytest.mark.parametrize(
    ("encoding", "data", "status", "code", "named"),
    [
        ("gzip", BODY, 400, "invalid_encoding", "the body is not valid gzip"),
        ("gzip", gzip.compress(BODY)[:-9], 400, "invalid_encoding", "it ends too early"),
        ("gzip", gzip.compress(BODY)[:-8] + b"\0" * 8, 400, "invalid_encoding", "incorrect data check"),
        ("gzip", gzip.compress(BODY) + b"x", 400, "invalid_encoding", "something follows it"),
        ("deflate", b"\xff" * 20, 400, "invalid_encoding", "the body is not valid deflate"),
        ("deflate", b"", 400, "invalid_encoding", "it ends too early"),
        ("br", BODY, 415, "unsupported_encoding", "send one of gzip, deflate, identity"),
        ("zstd", BODY, 415, "unsupported_encoding", "'zstd' is not taken here"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), 415, "unsupported_encoding", "'gzip, gzip' is not"),
        ("gzip", BOMB, 413, "body_too_long", "longer than 1000000 bytes when it is decompressed"),
    ],
    # Not the bytes: a gzip header holds the time, and every process must find the same tests.
    ids=["plain", "short", "checksum", "longer", "noise", "empty", "br", "zstd", "twice", "bomb"],
)
def test_broken_unknown_and_huge_encodings(encoding: str, data: bytes, status: int, code: str, named: str) -> None:
    async def test(cluster: Doors) -> None:
        got, error, headers = await post(cluster, data, Content_Type="application/json", Content_Encoding=encoding)
        assert (got, error["code"]) == (status, code)
        assert named in error["message"]
        assert (headers.get("Accept-Encoding") == "gzip, deflate, identity") is (status == 415)

    with_doors(test, http=HttpConfig(max_body_bytes=1_000_000))


def test_a_compressed_bomb_uses_no_more_memory_than_a_body_may() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    tracemalloc.start()
    with pytest.raises(HttpError):
        inflate(bomb, "gzip", 100_000)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
