"""The gRPC service `Batches`: translates between protobuf messages and `doors/batches`."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from dunlin.limits import InvalidField
from dunlin.messages.batches import (
    BATCH_RESULTS,
    CANCEL_BATCH,
    CREATE_BATCH,
    GET_BATCH,
    LIST_BATCHES,
    UPLOAD_FILE,
    BatchJob,
    BatchLabel,
    BatchLineError,
    BatchList,
    BatchResultsRequest,
    CancelBatchRequest,
    CreateBatchRequest,
    FileChunk,
    FileReply,
    GetBatchRequest,
    ListBatchesRequest,
)
from dunlin.wire.rpc.methods import Methods
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.batches.records import JobView
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.batches.service import BatchService, result_file
from services.dispatcher.doors.grpc_server import authorization_of, refusal_of

if TYPE_CHECKING:  # generic for the type checker alone
    Context = grpc.aio.ServicerContext[Any, Any]

R = TypeVar("R")


class GrpcBatches:
    """Answers clients over gRPC."""

    def __init__(self, batches: BatchService, authenticator: Authenticator) -> None:
        self._batches = batches
        self._authenticator = authenticator

    def methods(self) -> Methods:
        """The gRPC methods, for the service to serve."""
        return Methods(
            {
                UPLOAD_FILE: self.upload,
                CREATE_BATCH: self.create,
                GET_BATCH: self.get,
                LIST_BATCHES: self.list_batches,
                CANCEL_BATCH: self.cancel,
                BATCH_RESULTS: self.results,
            }
        )

    async def upload(self, chunks: AsyncGenerator[FileChunk, None], context: "Context") -> FileReply:
        """Keep a file."""
        first = await anext(chunks, FileChunk(b""))
        made = await self._refusing(
            context, self._batches.upload(self._tenant(context), first.filename or "file", _data(first, chunks))
        )
        return FileReply(made.id, made.bytes)

    async def create(self, request: CreateBatchRequest, context: "Context") -> BatchJob:
        """A new job."""
        metadata = {label.name: label.value for label in request.metadata}
        making = self._batches.create(
            self._tenant(context), request.input_file, request.endpoint, request.window_s, metadata
        )
        return job_message(await self._refusing(context, making))

    async def get(self, request: GetBatchRequest, context: "Context") -> BatchJob:
        """A job."""
        return job_message(await self._refusing(context, self._batches.get(self._tenant(context), request.batch)))

    async def list_batches(self, request: ListBatchesRequest, context: "Context") -> BatchList:
        """The caller's jobs."""
        listing = self._batches.list_jobs(self._tenant(context), request.after, request.limit)
        views, more = await self._refusing(context, listing)
        return BatchList(tuple(map(job_message, views)), more)

    async def cancel(self, request: CancelBatchRequest, context: "Context") -> BatchJob:
        """Ask for a job's cancellation."""
        return job_message(await self._refusing(context, self._batches.cancel(self._tenant(context), request.batch)))

    async def results(self, request: BatchResultsRequest, context: "Context") -> None:
        """Stream a job's committed results."""
        await self._refusing(context, self._stream(request, context))

    async def _stream(self, request: BatchResultsRequest, context: "Context") -> None:
        tenant = self._tenant(context)
        view = await self._batches.get(tenant, request.batch)
        async with aclosing(self._batches.content(tenant, result_file(view.job, request.errors).id)) as blocks:
            async for block in blocks:
                await context.write(FileChunk(block))

    def _tenant(self, context: "Context") -> str | None:
        return self._authenticator.authenticate(authorization_of(context))

    async def _refusing(self, context: "Context", work: Awaitable[R]) -> R:
        """The result of `work`; what it refuses ends the call with the status for it."""
        try:
            return await work
        except InvalidField as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except DoorError as error:
            await context.abort(*refusal_of(error))
        raise AssertionError("abort raises")


async def _data(first: FileChunk, chunks: AsyncIterator[FileChunk]) -> AsyncIterator[bytes]:
    yield first.data
    async for chunk in chunks:
        yield chunk.data


def job_message(view: JobView) -> BatchJob:
    """A job, as clients see it."""
    job = view.job
    return BatchJob(
        batch=job.id,
        status=view.status,
        endpoint=job.endpoint,
        input_file=job.input_file,
        window_s=job.window_s,
        total=job.total,
        completed=job.completed,
        failed=job.failed,
        bad_lines=job.bad_lines,
        input_tokens=job.tokens.input,
        cached_tokens=job.tokens.cached,
        output_tokens=job.tokens.output,
        created_s=job.created_s,
        started_s=job.started_s,
        ended_s=job.ended_s,
        expires_s=job.expires_s,
        output_bytes=job.output_bytes,
        error_bytes=job.error_bytes,
        errors=tuple(BatchLineError(error.line, error.code, error.message) for error in job.errors),
        metadata=tuple(BatchLabel(name, value) for name, value in job.metadata.items()),
    )
