"""Client ↔ dispatcher over gRPC: batch jobs, the files that they read, and their results.

A file has one JSON object per line, as OpenAI's batches: `custom_id`, `method`, `url` and `body`.
"""

from dunlin.messages.declare import Method, message, number


@message()
class FileChunk:
    """A part of a file. The first chunk of an upload has the `filename`; `data` may be cut anywhere."""

    data: bytes = number(1)
    filename: str = number(2, default="")


@message()
class FileReply:
    """An uploaded file, of `size` bytes."""

    file: str = number(1)
    size: int = number(2)


@message()
class BatchLabel:
    """A name and a value that the client gave the job."""

    name: str = number(1)
    value: str = number(2)


@message()
class CreateBatchRequest:
    """A new job over the lines of `input_file`, all for `endpoint`; after `window_s` seconds it expires."""

    input_file: str = number(1)
    endpoint: str = number(2)
    window_s: float = number(3)
    metadata: tuple[BatchLabel, ...] = number(4, default=())


@message()
class GetBatchRequest:
    """Ask for a job."""

    batch: str = number(1)


@message()
class CancelBatchRequest:
    """Ask for a job's cancellation: lines without an answer get the error `batch_cancelled`."""

    batch: str = number(1)


@message()
class ListBatchesRequest:
    """Ask for at most `limit` jobs, newest first, of those behind the job `after` (empty: from the newest on)."""

    after: str = number(1, default="")
    limit: int = number(2, default=20)


@message()
class BatchResultsRequest:
    """Ask for a job's output lines, or (`errors`) its error lines: those committed so far, in order of the input."""

    batch: str = number(1)
    errors: bool = number(2, default=False)


@message()
class BatchLineError:
    """A line that is no request: its number from 1 (0: the whole file), a code, and what is wrong."""

    line: int = number(1)
    code: str = number(2)
    message: str = number(3)


@message()
class BatchJob:
    """A job. Times are Unix seconds, 0: not yet. `status` has OpenAI's words.

    `total` counts the lines of the input, `completed` and `failed` those whose results are committed; `bad_lines` of
    the failed ones were no request, `errors` tells the first of them.
    """

    batch: str = number(1)
    status: str = number(2)
    endpoint: str = number(3)
    input_file: str = number(4)
    window_s: float = number(5)
    total: int = number(6)
    completed: int = number(7)
    failed: int = number(8)
    bad_lines: int = number(9)
    input_tokens: int = number(10)
    cached_tokens: int = number(11)
    output_tokens: int = number(12)
    created_s: float = number(13)
    started_s: float = number(14)
    ended_s: float = number(15)
    expires_s: float = number(16)
    output_bytes: int = number(17)
    error_bytes: int = number(18)
    errors: tuple[BatchLineError, ...] = number(19, default=())
    metadata: tuple[BatchLabel, ...] = number(20, default=())

    @property
    def is_open(self) -> bool:
        """Whether work is left."""
        return self.status in ("validating", "in_progress", "cancelling")


@message()
class BatchList:
    """Jobs, newest first; `more` follow the last one."""

    batches: tuple[BatchJob, ...] = number(1)
    more: bool = number(2, default=False)


BATCHES_SERVICE = "dunlin.v1.Batches"
"""The public door of a dispatcher for batch jobs."""
UPLOAD_FILE = Method(BATCHES_SERVICE, "UploadFile", FileChunk, FileReply, uploads=True)
CREATE_BATCH = Method(BATCHES_SERVICE, "CreateBatch", CreateBatchRequest, BatchJob)
GET_BATCH = Method(BATCHES_SERVICE, "GetBatch", GetBatchRequest, BatchJob)
LIST_BATCHES = Method(BATCHES_SERVICE, "ListBatches", ListBatchesRequest, BatchList)
CANCEL_BATCH = Method(BATCHES_SERVICE, "CancelBatch", CancelBatchRequest, BatchJob)
BATCH_RESULTS = Method(BATCHES_SERVICE, "BatchResults", BatchResultsRequest, FileChunk, streams=True)
