"""The dispatcher's side of a helper process: sends one body, waits for its answer, over a socket pair.

Blocking: each lane has a thread that waits here. A helper that is too slow, or dies of a body, is replaced.
"""

import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

from dunlin.messages.door import RejectionCode
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.preprocess.codec import decode
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed

_log = logging.getLogger(__name__)

CHILD_MODULE = "services.dispatcher.doors.preprocess.child"
FRAME_HEADER = struct.Struct("<BQ")
"""The kind of a frame (`BodyKind`, or one of the child's), and its length in bytes."""
ANSWER_FRAME, READY_FRAME = 0, 255
"""What the child sends for each body: that it has loaded what bodies of its kind need and begins, then the answer."""
READY_WITHIN_S = 120.0
"""A cold disk and busy cores may load a tokenizer so slowly: the fault of no body."""


class HelperNotReady(DoorError):
    """The child did not begin in time: whatever the body."""


class HelperLost(DoorError):
    """The child died of the body, or was too slow over it: sent again, it may well end the next one too."""


def send_frame(connection: socket.socket, kind: int, *parts: bytes) -> None:
    """Write one frame of the joined parts; blocks until it is written."""
    connection.sendall(FRAME_HEADER.pack(kind, sum(map(len, parts))))
    for part in parts:
        connection.sendall(part)


def receive_frame(connection: socket.socket) -> tuple[int, bytearray]:
    """Read one frame: its kind and its bytes; blocks until it is complete.

    Raises:
        EOFError: the other side has closed the socket.
    """
    kind, length = FRAME_HEADER.unpack(_receive(connection, FRAME_HEADER.size))
    return kind, _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        received = connection.recv_into(view[filled:])
        if not received:
            raise EOFError("the other side has closed the socket")
        filled += received
    return data


class HelperProcess:
    """Owns one child process, which is started for the first body and, after its death, for the next one.

    `read` is for one thread, which must live as long as the child: the kernel ends the child with the thread that
    started it. `kill` is for any thread. `nice` is the child's priority, `within_s` the time for one body in seconds,
    in which neither its start counts nor what it loads for the first one.
    """

    def __init__(self, model: ServedModel, nice: int, within_s: float) -> None:
        self._model = model
        self._nice = nice
        self._within_s = within_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._is_ended = False

    def read(self, kind: BodyKind, parts: Sequence[bytes]) -> Preprocessed:
        """Preprocess the body (the joined parts) in the child.

        Raises:
            InvalidField, DoorError: as `Preprocessor.read`; a DoorError too if the child did not answer, HelperNotReady
                if it did not even begin.
        """
        is_ready = False
        try:
            connection = self._started()
            send_frame(connection, kind, *parts)
            receive_frame(connection)
            is_ready = True
            connection.settimeout(self._within_s)
            outcome = decode(receive_frame(connection)[1])
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise self._on_child_lost(sum(map(len, parts)), error, is_ready) from error
        if isinstance(outcome, Preprocessed):
            return outcome
        raise outcome

    def kill(self) -> None:
        """Kill the child; no other one is started."""
        with self._lock:
            self._is_ended = True
            self._kill_child()

    def _started(self) -> socket.socket:
        with self._lock:
            if self._is_ended:
                raise EOFError(STOPPING_TEXT)
            if self._process is not None and self._process.poll() is not None:
                self._kill_child()
            if self._connection is None:
                self._connection = self._start()
            self._connection.settimeout(READY_WITHIN_S)
            return self._connection

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", CHILD_MODULE, *self._arguments(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # see `lower_priority`
            )
        return ours

    def _arguments(self, fd: int) -> list[str]:
        model = self._model
        return [
            *("--socket-fd", str(fd), "--parent-pid", str(os.getpid()), "--nice", str(self._nice)),
            *(f"--folder={model.folder}", f"--name={model.name}"),  # either may begin with a dash
            *("--max-positions", str(model.max_positions), "--vocabulary", str(model.vocabulary)),
            *("--eos-ids", *map(str, model.eos_ids)),
            *(f"--adapter={digest}={name}" for name, digest in model.adapters.items()),
        ]

    def _on_child_lost(self, size: int, error: Exception, is_ready: bool) -> DoorError:
        with self._lock:
            self._kill_child()
            if self._is_ended:
                return DoorError(RejectionCode.UNAVAILABLE, STOPPING_TEXT, retry_after_s=1.0)
        if not is_ready and isinstance(error, TimeoutError):
            text = f"a helper process was not ready to read requests within {READY_WITHIN_S:g} s"
            _log.error("%s: is the machine overloaded? Another will be started", text)
            return HelperNotReady(RejectionCode.UNAVAILABLE, text, retry_after_s=1.0)
        why = f"did not answer within {self._within_s:g} s" if isinstance(error, TimeoutError) else "has died"
        _log.error("a helper process %s over a request of %d bytes (%s); another will be started", why, size, error)
        text = f"the process that reads large requests {why} over this one of {size} bytes: send a smaller one"
        return HelperLost(RejectionCode.UNAVAILABLE, text, retry_after_s=1.0)

    def _kill_child(self) -> None:
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if process is not None:
            process.kill()
            process.wait()
        if connection is not None:
            connection.close()
