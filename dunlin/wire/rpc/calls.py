"""The calling side of `methods.py`, for threads and for asyncio, with one error that needs no gRPC to understand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from dunlin.messages.declare import Method
from dunlin.wire.codec import CodecError, decode, encode
from dunlin.wire.metadata import metadata_values
from dunlin.wire.rpc.methods import REASON, RETRY_AFTER

Q = TypeVar("Q")
R = TypeVar("R")

Channel = grpc.Channel
AioChannel = grpc.aio.Channel
Metadata = tuple[tuple[str, str], ...]


OnOpen = Callable[[Callable[[], object]], None]


def _ignore(cancel: Callable[[], object]) -> None:
    """The call is not cancelled from outside."""


class CallFailed(Exception):
    """A call that failed. `status` is the name of gRPC's code; `retry_after_s` None: the server named none.

    `reason` is the server's own word for why it was refused, empty if it gave none.
    """

    def __init__(self, status: str, detail: str, retry_after_s: float | None = None, reason: str = "") -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.reason = reason


def call_blocking(
    channel: Channel, method: Method[Q, R], request: Q, timeout_s: float | None = None, metadata: Metadata = ()
) -> R:
    """Call from a thread; returns the one answer. `metadata` goes with the request.

    Raises:
        CallFailed: whatever went wrong.
    """
    invoke: Any = channel.unary_unary(method.path, response_deserializer=_reader(method))
    data = _encoded(request)
    try:
        return cast(R, invoke(data, timeout=timeout_s, metadata=metadata))
    except grpc.RpcError as error:
        raise _failed(error) from error


def stream_blocking(
    channel: Channel, method: Method[Q, R], request: Q, metadata: Metadata = (), on_open: OnOpen = _ignore
) -> Generator[R, None, None]:
    """Call from a thread; yields the answers as they come. Closing the generator cancels the call.

    `on_open` gets the function that cancels the call from another thread; it then fails with CANCELLED.

    Raises:
        CallFailed: whatever went wrong.
    """
    invoke: Any = channel.unary_stream(method.path, response_deserializer=_reader(method))
    ongoing = invoke(_encoded(request), metadata=metadata)
    on_open(ongoing.cancel)
    try:
        yield from ongoing
    except grpc.RpcError as error:
        raise _failed(error) from error
    finally:
        ongoing.cancel()


def upload_blocking(
    channel: Channel,
    method: Method[Q, R],
    requests: Iterable[Q],
    timeout_s: float | None = None,
    metadata: Metadata = (),
) -> R:
    """Call from a thread with any number of requests; returns the one answer.

    Raises:
        CallFailed: whatever went wrong with the call; what `requests` raises, as it is.
    """
    invoke: Any = channel.stream_unary(method.path, response_deserializer=_reader(method))
    source = _Source(requests)
    try:
        return cast(R, invoke(source, timeout=timeout_s, metadata=metadata))
    except grpc.RpcError as error:
        if source.error is not None:
            raise source.error from None
        raise _failed(error) from error


class _Source:
    """Encodes requests for gRPC, which hides what an iterator raises: it is kept here."""

    def __init__(self, requests: Iterable[object]) -> None:
        self.error: Exception | None = None
        self._requests = iter(requests)

    def __iter__(self) -> "_Source":
        return self

    def __next__(self) -> bytes:
        try:
            return _encoded(next(self._requests))
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


async def upload_async(
    channel: AioChannel,
    method: Method[Q, R],
    requests: AsyncIterable[Q],
    timeout_s: float | None = None,
    metadata: Metadata = (),
) -> R:
    """As `upload_blocking`, from an event loop."""
    invoke: Any = channel.stream_unary(method.path, response_deserializer=_reader(method))
    call = invoke(timeout=timeout_s, metadata=metadata)
    try:
        async for request in requests:
            await call.write(_encoded(request))
        await call.done_writing()
    except (grpc.RpcError, asyncio.InvalidStateError):
        pass  # the call ended early, and says why
    except BaseException:
        call.cancel()
        raise
    with _failures():
        return cast(R, await call)


async def call_async(
    channel: AioChannel, method: Method[Q, R], request: Q, timeout_s: float | None = None, metadata: Metadata = ()
) -> R:
    """Call from an event loop; returns the one answer. Raises like `call_blocking`."""
    invoke: Any = channel.unary_unary(method.path, response_deserializer=_reader(method))
    data = _encoded(request)
    with _failures():
        return cast(R, await invoke(data, timeout=timeout_s, metadata=metadata))


async def stream_async(
    channel: AioChannel, method: Method[Q, R], request: Q, metadata: Metadata = (), on_open: OnOpen = _ignore
) -> AsyncGenerator[R, None]:
    """Yields the answers as they come. Closing the generator, or cancelling its task, cancels the call.

    Raises like `stream_blocking`, and takes an `on_open` like it.
    """
    invoke: Any = channel.unary_stream(method.path, response_deserializer=_reader(method))
    ongoing = invoke(_encoded(request), metadata=metadata)
    on_open(ongoing.cancel)
    try:
        with _failures():
            async for answer in ongoing:
                yield answer
    finally:
        ongoing.cancel()


@contextmanager
def _failures() -> Iterator[None]:
    """Whatever gRPC raises for asyncio comes out as CallFailed.

    It raises `asyncio.CancelledError` also for a call that was cancelled, or whose channel was closed, by another task:
    only the cancellation of this task goes through.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _failed(error) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallFailed(grpc.StatusCode.CANCELLED.name, "the call was cancelled, or its channel closed") from None


def _reader(method: Method[Any, Any]) -> Any:
    return partial(decode, method.response.__name__)


def _encoded(request: object) -> bytes:
    # Here and not in gRPC's serializer, which would turn the caller's mistake into an error of the server.
    try:
        return encode(cast(Any, request))
    except (CodecError, TypeError, ValueError, OverflowError) as error:
        raise CallFailed(grpc.StatusCode.INVALID_ARGUMENT.name, str(error)) from error


def _failed(error: Any) -> CallFailed:
    metadata = metadata_values(error.trailing_metadata())
    after = metadata.get(RETRY_AFTER)
    retry_after_s = None if after is None else float(after)
    reason = str(metadata.get(REASON, ""))
    return CallFailed(error.code().name, error.details() or "no details", retry_after_s, reason)
