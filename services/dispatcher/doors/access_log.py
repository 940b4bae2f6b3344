"""The access log: one JSON object per line and call, written by a thread of its own.

Bounded in memory (a queue that drops and counts when it is full) and on disk (a full file is renamed to `.1`, older
files move up by one, the oldest is removed). A full or slow disk loses lines, and never blocks the event loop.
"""

import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from dunlin.wire.errors import StartError
from services.dispatcher.process_config import AccessLogConfig

_log = logging.getLogger(__name__)

STDOUT = "-"


class AccessLog:
    """Owns the queue, the thread and the file. `lines_total` lines were written, `dropped_total` were dropped."""

    def __init__(self, config: AccessLogConfig) -> None:
        """Open the file and start the thread.

        Raises:
            StartError: the file cannot be written.
        """
        self.lines_total = 0
        self.dropped_total = 0
        self._most_queued = config.max_queued
        self._queue: deque[Mapping[str, object]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._file = _Stdout() if config.path == STDOUT else _Rotated(config)
        self._fails = False
        try:
            self._file.write(b"")
        except OSError as error:
            raise StartError(f"--access-log {config.path}: {error.strerror or error}") from error
        # A daemon thread: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def write(self, line: Mapping[str, object]) -> None:
        """Queue one line; dropped and counted when the queue is full. Its `time_s` is written as `time`, in UTC."""
        with self._changed:
            if len(self._queue) >= self._most_queued or self._closing:
                self.dropped_total += 1
                return
            self._queue.append(line)
            self._changed.notify()

    def close(self, limit_s: float = 1.0) -> None:
        """Write the queued lines, but wait for at most `limit_s` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)

    def _run(self) -> None:
        while lines := self._next_lines():
            try:
                self._file.write(b"".join(map(encode_line, lines)))
            except OSError as error:
                self._on_write_error(len(lines), error)
            else:
                self.lines_total += len(lines)
                self._fails = False
        self._file.close()

    def _next_lines(self) -> list[Mapping[str, object]]:
        """The queued lines, at least one; blocks while there is none. Empty: the log is closed."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            lines = list(self._queue)
            self._queue.clear()
            return lines

    def _on_write_error(self, lines: int, error: OSError) -> None:
        """Count the lines as dropped, and log the error once until a write succeeds: a full disk must not flood it."""
        with self._changed:
            self.dropped_total += lines
        if not self._fails:
            _log.error("the access log cannot be written, its lines are dropped: %s", error.strerror or error)
        self._fails = True


def encode_line(line: Mapping[str, object]) -> bytes:
    """One line of the file, in ASCII: text from a client cannot end the line or move a terminal's cursor."""
    values = {name: round(value, 6) if isinstance(value, float) else value for name, value in line.items()}
    at = datetime.fromtimestamp(float(str(values.pop("time_s"))), UTC)
    return json.dumps({"time": at.isoformat(timespec="milliseconds"), **values}).encode() + b"\n"


class _Stdout:
    """Standard output; never rotated."""

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Leave standard output open: this process did not open it."""


class _Rotated:
    """A rotated file; it is opened again when another program (logrotate) has renamed or removed it."""

    def __init__(self, config: AccessLogConfig) -> None:
        self._path = Path(config.path)
        self._most_bytes = config.max_bytes
        self._kept = config.max_old_files
        self._file: FileIO | None = None
        self._is_torn = False

    def write(self, data: bytes) -> None:
        file = self._open()
        if file.tell() and file.tell() + len(data) > self._most_bytes:
            self._rotate()
            file = self._open()
        # The rest of a line that a full disk cut off must not run into the next one.
        left = b"\n" + data if self._is_torn else data
        while left:
            self._is_torn = True
            left = left[file.write(left) :]
        self._is_torn = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is not None and self._is_there(self._file):
            return self._file
        self.close()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._file = FileIO(descriptor, "ab")
        return self._file

    def _is_there(self, file: FileIO) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        self.close()
        for number in range(self._kept, 0, -1):
            older = self._numbered(number - 1) if number > 1 else self._path
            if older.exists():
                os.replace(older, self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
