"""Objects are written whole and read in blocks, in a folder and in what else fsspec knows by URL."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from services.dispatcher.batches.content_store import BLOCK_BYTES, ContentStore, ContentTooLong

DATA = bytes(range(256)) * (2 * BLOCK_BYTES // 256) + b"end"


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "folder" else f"memory://{tmp_path.name}"


async def stream(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def read(store: ContentStore, name: str, offset: int = 0) -> bytes:
    return b"".join([block async for block in store.blocks(name, offset)])


def test_what_is_written_is_read_from_anywhere(url: str) -> None:
    async def test() -> None:
        store = ContentStore(url)
        await store.write("jobs/one/0", DATA)
        assert await store.write_stream("files/two", stream(DATA[:7], DATA[7:]), len(DATA)) == len(DATA)
        for name in ("jobs/one/0", "files/two"):
            assert await read(store, name) == DATA
            assert await read(store, name, BLOCK_BYTES + 1) == DATA[BLOCK_BYTES + 1 :]
        await store.remove("jobs/one")
        await store.remove("jobs/one")
        with pytest.raises(FileNotFoundError):
            await read(store, "jobs/one/0")
        assert await read(store, "files/two") == DATA
        store.close()

    asyncio.run(test())


def test_a_stream_that_is_too_long_or_breaks_leaves_nothing(url: str) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield DATA
        raise ConnectionError

    async def test() -> None:
        store = ContentStore(url)
        with pytest.raises(ContentTooLong):
            await store.write_stream("files/long", stream(DATA, DATA), len(DATA) + 1)
        with pytest.raises(ConnectionError):
            await store.write_stream("files/broken", broken(), 2 * len(DATA))
        for name in ("files/long", "files/broken"):
            while True:  # the store's own thread removes it
                try:
                    await read(store, name)
                except FileNotFoundError:
                    break
        store.close()

    asyncio.run(test())


def test_an_object_that_breaks_off_is_closed_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket's file may send what it has then, over a slow link."""
    closed: list[int] = []

    class Handle(io.BytesIO):
        def close(self) -> None:
            closed.append(threading.get_ident())
            super().close()

    async def test() -> None:
        store = ContentStore(str(tmp_path))
        monkeypatch.setattr(store, "_open", lambda name: Handle())
        with pytest.raises(ContentTooLong):
            await store.write_stream("files/long", stream(DATA), 1)
        while not closed:
            await asyncio.sleep(0.01)
        store.close()
        assert threading.get_ident() not in closed

    asyncio.run(test())


def test_an_unknown_scheme_is_said() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        ContentStore("nowhere://bucket")


class LostBucket(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A bucket that does not answer, as s3fs says it: botocore's errors of connections are no OSErrors."""

    class ConnectError(Exception):
        pass

    def open(self, path: str, *arguments: Any, **named: Any) -> Any:
        raise self.ConnectError("no answer")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Buckets have no folders."""

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        raise self.ConnectError("no answer")


def test_a_bucket_that_does_not_answer_is_a_store_that_is_away() -> None:
    async def test() -> None:
        store = ContentStore("lost://bucket")
        for work in (
            store.write("jobs/one/0", DATA),
            store.write_stream("files/two", stream(DATA), len(DATA)),
            read(store, "files/two"),
            store.remove("files/two"),
        ):
            with pytest.raises(OSError, match="ConnectError: no answer"):
                await work
        store.close()

    fsspec.register_implementation("lost", LostBucket, clobber=True)
    asyncio.run(test())
