"""OpenAI's objects of batches and files, made of records. Knows no HTTP."""

from services.dispatcher.batches.records import FileRecord, JobStatus, JobView, LineError
from services.dispatcher.doors.batches.service import WINDOW_UNITS, result_files
from services.dispatcher.doors.openai.reply import Json


def file_object_json(file: FileRecord) -> Json:
    """A file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_s),
        "expires_at": None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_json(view: JobView) -> Json:
    """A batch. Result files are named once it has ended."""
    job = view.job
    output, errors = (None, None) if job.is_open else result_files(job)
    ended = {status: int(job.ended_s) if job.status is status else None for status in JobStatus}
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": job.endpoint,
        "input_file_id": job.input_file,
        "output_file_id": output,
        "error_file_id": errors,
        "completion_window": window_text(job.window_s),
        "status": view.status,
        "errors": {"object": "list", "data": [_error_json(error) for error in job.errors]} if job.errors else None,
        "created_at": int(job.created_s),
        "in_progress_at": _time(job.started_s),
        "finalizing_at": _time(job.ended_s if job.status is JobStatus.COMPLETED else 0),
        "cancelling_at": _time(view.cancelling_s),
        "completed_at": ended[JobStatus.COMPLETED],
        "failed_at": ended[JobStatus.FAILED],
        "expired_at": ended[JobStatus.EXPIRED],
        "cancelled_at": ended[JobStatus.CANCELLED],
        "expires_at": int(job.expires_s),
        "request_counts": {"total": job.total, "completed": job.completed, "failed": job.failed},
        "usage": {
            "input_tokens": job.tokens.input,
            "input_tokens_details": {"cached_tokens": job.tokens.cached},
            "output_tokens": job.tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": job.tokens.input + job.tokens.output,
        },
        "metadata": job.metadata or None,
    }


def window_text(window_s: float) -> str:
    """A completion window as clients write it."""
    for unit in ("d", "h", "m"):
        if window_s % WINDOW_UNITS[unit] == 0 and (unit != "d" or window_s > WINDOW_UNITS["d"]):
            return f"{window_s / WINDOW_UNITS[unit]:.0f}{unit}"
    return f"{window_s:.0f}s"


def _error_json(error: LineError) -> Json:
    return {"code": error.code, "line": error.line or None, "message": error.message, "param": None}


def _time(time_s: float) -> int | None:
    return int(time_s) if time_s else None
