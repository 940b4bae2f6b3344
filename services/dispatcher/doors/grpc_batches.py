"""The gRPC service `Batches`: translates between protobuf messages and `doors/batches`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc.aio

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
from dunlin.messages.declare import Method
from dunlin.wire.rpc.methods import Answer
from services.dispatcher.batches.records import JobView
from services.dispatcher.doors.batches.service import BatchService, result_file
from services.dispatcher.doors.grpc_server import GrpcDoor

if TYPE_CHECKING:  # generic for the type checker alone
    Context = grpc.aio.ServicerContext[Any, Any]


class GrpcBatches:
    """Answers clients over gRPC, behind the gate of `door`."""

    def __init__(self, batches: BatchService, door: GrpcDoor) -> None:
        self._batches = batches
        self._door = door

    def answers(self) -> dict[Method[Any, Any], Answer]:
        """The methods, for the door to serve."""
        return {
            UPLOAD_FILE: self.upload,
            CREATE_BATCH: self.create,
            GET_BATCH: self.get,
            LIST_BATCHES: self.list_batches,
            CANCEL_BATCH: self.cancel,
            BATCH_RESULTS: self.results,
        }

    async def upload(self, chunks: AsyncGenerator[FileChunk, None], context: "Context") -> FileReply:
        """Keep a file."""
        async with self._door.recorded(UPLOAD_FILE, context) as tenant:
            first = await anext(chunks, FileChunk(b""))
            made = await self._batches.upload(tenant, first.filename or "file", _data(first, chunks))
            return FileReply(made.id, made.bytes)

    async def create(self, request: CreateBatchRequest, context: "Context") -> BatchJob:
        """A new job."""
        metadata = {label.name: label.value for label in request.metadata}
        async with self._door.recorded(CREATE_BATCH, context) as tenant:
            made = await self._batches.create(tenant, request.input_file, request.endpoint, request.window_s, metadata)
            return job_message(made)

    async def get(self, request: GetBatchRequest, context: "Context") -> BatchJob:
        """A job."""
        async with self._door.recorded(GET_BATCH, context) as tenant:
            return job_message(await self._batches.get(tenant, request.batch))

    async def list_batches(self, request: ListBatchesRequest, context: "Context") -> BatchList:
        """The caller's jobs."""
        async with self._door.recorded(LIST_BATCHES, context) as tenant:
            views, more = await self._batches.list_jobs(tenant, request.after, request.limit)
            return BatchList(tuple(map(job_message, views)), more)

    async def cancel(self, request: CancelBatchRequest, context: "Context") -> BatchJob:
        """Ask for a job's cancellation."""
        async with self._door.recorded(CANCEL_BATCH, context) as tenant:
            return job_message(await self._batches.cancel(tenant, request.batch))

    async def results(self, request: BatchResultsRequest, context: "Context") -> None:
        """Stream a job's committed results."""
        async with self._door.recorded(BATCH_RESULTS, context) as tenant:
            view = await self._batches.get(tenant, request.batch)
            async with aclosing(self._batches.content(tenant, result_file(view.job, request.errors).id)) as blocks:
                async for block in blocks:
                    await context.write(FileChunk(block))


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
