"""Batch jobs of the SDK: `client.batches` of `Client` and of `AsyncClient`. Test: tests/client/test_batches.py."""

import asyncio
import json
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Generator,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dunlin.client.batch_lines import Line, Source, async_chunks, can_repeat, chunks_of, whole_lines
from dunlin.client.endpoints import Endpoints
from dunlin.client.errors import NO_ANSWER, DunlinError, Unavailable, error_from_call
from dunlin.messages.batches import (
    BATCH_RESULTS,
    CANCEL_BATCH,
    CREATE_BATCH,
    GET_BATCH,
    LIST_BATCHES,
    UPLOAD_FILE,
    BatchJob,
    BatchLabel,
    BatchList,
    BatchResultsRequest,
    CancelBatchRequest,
    CreateBatchRequest,
    GetBatchRequest,
    ListBatchesRequest,
)
from dunlin.messages.declare import Method
from dunlin.wire.rpc.calls import (
    AioChannel,
    CallFailed,
    Channel,
    Metadata,
    call_async,
    call_blocking,
    stream_async,
    stream_blocking,
    upload_async,
    upload_blocking,
)

R = TypeVar("R")
C = TypeVar("C")
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Connection(Generic[C]):
    """What a client lends: its endpoints, credentials and a channel to each dispatcher. `timeout_s` is of one call."""

    endpoints: Endpoints
    metadata: Metadata
    timeout_s: float
    channel: Callable[[str], C]

    def error(self, failed: CallFailed, endpoint: str) -> DunlinError:
        """The error for a failed call; one without an answer makes the next dispatcher the current one."""
        error = error_from_call(failed, endpoint)
        if isinstance(error, NO_ANSWER):
            self.endpoints.mark_failed(endpoint)
        return error


class Batches:
    """Batch jobs, blocking. Any dispatcher answers for any job; all methods raise `DunlinError`s."""

    def __init__(self, connection: Connection[Channel]) -> None:
        self._connection = connection

    def create(
        self,
        source: Source,
        endpoint: str = "/v1/completions",
        *,
        window_s: float = 86_400.0,
        metadata: Mapping[str, str] | None = None,
    ) -> BatchJob:
        """Upload the lines and begin a job over them; after `window_s` seconds it expires."""
        return self.create_from(self.upload(source), endpoint, window_s=window_s, metadata=metadata)

    def create_from(
        self,
        input_file: str,
        endpoint: str = "/v1/completions",
        *,
        window_s: float = 86_400.0,
        metadata: Mapping[str, str] | None = None,
    ) -> BatchJob:
        """Begin a job over an uploaded file. Not repeated by itself: the job may have begun."""
        return self._once(CREATE_BATCH, _create_request(input_file, endpoint, window_s, metadata))

    def upload(self, source: Source) -> str:
        """Upload lines; the file's id. Its parts go out as they are read.

        A file or a list goes to one dispatcher after the other, lines that can be read once to the current one alone.
        """
        failed: DunlinError | None = None
        for endpoint in _upload_order(self._connection.endpoints, source):
            try:
                return self._upload(endpoint, source)
            except Unavailable as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def get(self, batch: str) -> BatchJob:
        """A job as it is now."""
        return self._any(GET_BATCH, GetBatchRequest(batch))

    def list(self, *, after: str = "", limit: int = 20) -> BatchList:
        """The caller's jobs, newest first."""
        return self._any(LIST_BATCHES, ListBatchesRequest(after, limit))

    def cancel(self, batch: str) -> BatchJob:
        """Cancel a job; what it has stays, and lines without an answer get an error."""
        return self._any(CANCEL_BATCH, CancelBatchRequest(batch))

    def wait(
        self, batch: str, *, poll_s: float = POLL_S, on_progress: Callable[[BatchJob], None] = lambda job: None
    ) -> BatchJob:
        """The job when it has ended; `on_progress` is called with each look at it."""
        while True:
            job = self.get(batch)
            on_progress(job)
            if not job.is_open:
                return job
            time.sleep(poll_s)

    def results(self, batch: str, *, errors: bool = False) -> Generator[dict[str, Any], None, None]:
        """The output lines, or the error lines, that are committed so far, in the order of the input."""
        for text in whole_lines(self.content(batch, errors=errors)):
            yield json.loads(text)

    def content(self, batch: str, *, errors: bool = False) -> Generator[bytes, None, None]:
        """The same as bytes, cut anywhere. Where a dispatcher is gone, the next one is asked for what is missing."""
        connection, request, unread = self._connection, BatchResultsRequest(batch, errors), _Unread()
        for endpoint in connection.endpoints.failover_order():
            unread.begin()
            try:
                for chunk in stream_blocking(connection.channel(endpoint), BATCH_RESULTS, request, connection.metadata):
                    yield unread.part(chunk.data)
                return
            except CallFailed as error:
                unread.fail(connection.error(error, endpoint))
        unread.give_up()

    def _any(self, method: Method[Any, R], request: Any) -> R:
        """Ask one dispatcher after the other; reading, and cancelling, may be repeated."""
        failed: DunlinError | None = None
        for endpoint in self._connection.endpoints.failover_order():
            try:
                return self._call(endpoint, method, request)
            except NO_ANSWER as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def _once(self, method: Method[Any, R], request: Any) -> R:
        return self._call(self._connection.endpoints.current, method, request)

    def _upload(self, endpoint: str, source: Source) -> str:
        connection = self._connection
        try:
            channel, chunks = connection.channel(endpoint), chunks_of(source)
            return upload_blocking(channel, UPLOAD_FILE, chunks, metadata=connection.metadata).file
        except CallFailed as error:
            raise connection.error(error, endpoint) from error

    def _call(self, endpoint: str, method: Method[Any, R], request: Any) -> R:
        connection = self._connection
        try:
            channel = connection.channel(endpoint)
            return call_blocking(channel, method, request, connection.timeout_s, connection.metadata)
        except CallFailed as error:
            raise connection.error(error, endpoint) from error


class AsyncBatches:
    """Batch jobs, for asyncio; as `Batches`."""

    def __init__(self, connection: Connection[AioChannel]) -> None:
        self._connection = connection

    async def create(
        self,
        source: Source | AsyncIterable[Line],
        endpoint: str = "/v1/completions",
        *,
        window_s: float = 86_400.0,
        metadata: Mapping[str, str] | None = None,
    ) -> BatchJob:
        """Upload the lines and begin a job over them; after `window_s` seconds it expires."""
        return await self.create_from(await self.upload(source), endpoint, window_s=window_s, metadata=metadata)

    async def create_from(
        self,
        input_file: str,
        endpoint: str = "/v1/completions",
        *,
        window_s: float = 86_400.0,
        metadata: Mapping[str, str] | None = None,
    ) -> BatchJob:
        """Begin a job over an uploaded file. Not repeated by itself: the job may have begun."""
        return await self._once(CREATE_BATCH, _create_request(input_file, endpoint, window_s, metadata))

    async def upload(self, source: Source | AsyncIterable[Line]) -> str:
        """Upload lines; the file's id. Its parts go out as they are read.

        A file or a list goes to one dispatcher after the other, lines that can be read once to the current one alone.
        """
        failed: DunlinError | None = None
        for endpoint in _upload_order(self._connection.endpoints, source):
            try:
                return await self._upload(endpoint, source)
            except Unavailable as error:
                failed = failed or error
        assert failed is not None
        raise failed

    async def get(self, batch: str) -> BatchJob:
        """A job as it is now."""
        return await self._any(GET_BATCH, GetBatchRequest(batch))

    async def list(self, *, after: str = "", limit: int = 20) -> BatchList:
        """The caller's jobs, newest first."""
        return await self._any(LIST_BATCHES, ListBatchesRequest(after, limit))

    async def cancel(self, batch: str) -> BatchJob:
        """Cancel a job; what it has stays, and lines without an answer get an error."""
        return await self._any(CANCEL_BATCH, CancelBatchRequest(batch))

    async def wait(self, batch: str, *, poll_s: float = POLL_S) -> BatchJob:
        """The job when it has ended."""
        job = await self.get(batch)
        while job.is_open:
            await asyncio.sleep(poll_s)
            job = await self.get(batch)
        return job

    async def results(self, batch: str, *, errors: bool = False) -> AsyncGenerator[dict[str, Any], None]:
        """The output lines, or the error lines, that are committed so far, in the order of the input."""
        rest = b""
        async with aclosing(self.content(batch, errors=errors)) as parts:
            async for part in parts:
                *whole, rest = (rest + part).split(b"\n")
                for text in whole:
                    yield json.loads(text)

    async def content(self, batch: str, *, errors: bool = False) -> AsyncGenerator[bytes, None]:
        """The same as bytes, cut anywhere. Where a dispatcher is gone, the next one is asked for what is missing."""
        connection, request, unread = self._connection, BatchResultsRequest(batch, errors), _Unread()
        for endpoint in connection.endpoints.failover_order():
            unread.begin()
            try:
                channel = connection.channel(endpoint)
                async with aclosing(stream_async(channel, BATCH_RESULTS, request, connection.metadata)) as chunks:
                    async for chunk in chunks:
                        yield unread.part(chunk.data)
                return
            except CallFailed as error:
                unread.fail(connection.error(error, endpoint))
        unread.give_up()

    async def _any(self, method: Method[Any, R], request: Any) -> R:
        failed: DunlinError | None = None
        for endpoint in self._connection.endpoints.failover_order():
            try:
                return await self._call(endpoint, method, request)
            except NO_ANSWER as error:
                failed = failed or error
        assert failed is not None
        raise failed

    async def _once(self, method: Method[Any, R], request: Any) -> R:
        return await self._call(self._connection.endpoints.current, method, request)

    async def _upload(self, endpoint: str, source: Source | AsyncIterable[Line]) -> str:
        connection = self._connection
        try:
            channel, chunks = connection.channel(endpoint), async_chunks(source)
            return (await upload_async(channel, UPLOAD_FILE, chunks, metadata=connection.metadata)).file
        except CallFailed as error:
            raise connection.error(error, endpoint) from error

    async def _call(self, endpoint: str, method: Method[Any, R], request: Any) -> R:
        connection = self._connection
        try:
            channel = connection.channel(endpoint)
            return await call_async(channel, method, request, connection.timeout_s, connection.metadata)
        except CallFailed as error:
            raise connection.error(error, endpoint) from error


class _Unread:
    """What of a content was not read yet, while it is asked for again from its beginning: it only grows at its end."""

    def __init__(self) -> None:
        self._read = 0
        self._skip = 0
        self._failed: DunlinError | None = None

    def begin(self) -> None:
        """The next part is the first one again."""
        self._skip = self._read

    def part(self, data: bytes) -> bytes:
        """What is new in the next part."""
        new = data[self._skip :]
        self._skip -= len(data) - len(new)
        self._read += len(new)
        return new

    def fail(self, error: DunlinError) -> None:
        """Note that one dispatcher did not answer; raises what any other would say too."""
        if not isinstance(error, NO_ANSWER):
            raise error
        self._failed = self._failed or error

    def give_up(self) -> None:
        """No dispatcher is left: raise what the first one failed with."""
        assert self._failed is not None
        raise self._failed


def _upload_order(endpoints: Endpoints, source: Source | AsyncIterable[Line]) -> tuple[str, ...]:
    return endpoints.failover_order() if can_repeat(source) else (endpoints.current,)


def _create_request(
    input_file: str, endpoint: str, window_s: float, metadata: Mapping[str, str] | None
) -> CreateBatchRequest:
    labels = tuple(BatchLabel(name, value) for name, value in (metadata or {}).items())
    return CreateBatchRequest(input_file, endpoint, window_s, labels)
