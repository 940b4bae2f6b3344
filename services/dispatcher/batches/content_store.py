"""The content of files and segments, as whole objects below one URL of fsspec: a folder, or a bucket.

Objects are never changed, and what no record in etcd names does not exist: a half-written object does no harm. Owns the
threads in which fsspec works.
"""

import asyncio
import io
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import fsspec

from services.dispatcher.batches.records import SegmentRecord

T = TypeVar("T")
BLOCK_BYTES = 256 << 10
_THREADS = 8


class ContentTooLong(Exception):
    """More bytes came than may be stored; the object was removed."""


def file_object(file: str) -> str:
    """The object with an uploaded file's content."""
    return f"files/{file}"


def segment_object(job: str, segment: SegmentRecord, is_error: bool) -> str:
    """The object with the output lines of a segment, or its error lines."""
    kind = "errors" if is_error else "output"
    return f"{job_folder(job)}/{segment.number:08d}-{segment.fence:x}.{kind}.jsonl"


def job_folder(job: str) -> str:
    """The folder of a job's segments."""
    return f"jobs/{job}"


class ContentStore:
    """Objects by name below `url`, such as /var/lib/dunlin/batches or s3://bucket/batches.

    All methods raise OSError when the store does not do it, whatever its own file system raises.

    Raises:
        ValueError, ImportError: fsspec does not know the URL's scheme, or lacks the package for it.
    """

    def __init__(self, url: str) -> None:
        self._files, self._root = fsspec.core.url_to_fs(url)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="batch-content")

    def close(self) -> None:
        """Release the threads, once they have removed what is to be removed."""
        self._threads.shutdown(wait=False)

    async def write(self, name: str, data: bytes) -> None:
        """Write an object of one piece; on return it is whole, on the disk where it is a local one."""
        await self._in_thread(self._write, name, data)

    async def write_stream(self, name: str, blocks: AsyncIterator[bytes], most_bytes: int) -> int:
        """Write an object as its blocks come; its bytes.

        Raises:
            ContentTooLong: there are more than `most_bytes`.
        """
        handle = await self._in_thread(self._open, name)
        size = 0
        try:
            async for block in blocks:
                size += len(block)
                if size > most_bytes:
                    raise ContentTooLong(f"more than {most_bytes} bytes")
                await self._in_thread(handle.write, block)
            await self._in_thread(_close, handle)
        except BaseException:
            # Not awaited, for this may be a cancellation; nor here: a bucket's file sends what it has when it closes.
            self._threads.submit(self._give_up, handle, name)
            raise
        return size

    async def blocks(self, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """An object's content from byte `offset` on. Raises FileNotFoundError."""
        handle = await self._in_thread(self._files.open, self._path(name), "rb")
        try:
            await self._in_thread(handle.seek, offset)
            while block := await self._in_thread(handle.read, BLOCK_BYTES):
                yield block
        finally:
            handle.close()

    async def remove(self, name: str) -> None:
        """Remove an object, or a folder with all in it, if it is there."""
        await self._in_thread(self._remove, name)

    def remove_later(self, name: str) -> None:
        """Remove an object once a thread is free. Errors are ignored: nothing refers to it."""
        self._threads.submit(self._remove, name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _open(self, name: str) -> Any:
        path = self._path(name)
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        return self._files.open(path, "wb")

    def _write(self, name: str, data: bytes) -> None:
        with self._open(name) as handle:
            handle.write(data)
            _close(handle)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)

    def _give_up(self, handle: Any, name: str) -> None:
        with suppress(Exception):
            handle.close()
        self._remove(name)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        working = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        try:
            return await working
        except OSError:
            raise
        except Exception as error:  # buckets: s3fs and gcsfs pass on what their HTTP clients raise where none answers
            raise OSError(f"{type(error).__name__}: {error}") from error


def _close(handle: Any) -> None:
    """Close an object that was written; a local file is on the disk then. Raises OSError: it is not."""
    handle.flush()
    number = getattr(handle, "fileno", None)
    if number is not None:
        with suppress(io.UnsupportedOperation):
            os.fsync(number())
    handle.close()
