"""The transfer helper as a process: reads commands of its instance until that closes the socket, or is gone.

It computes nothing and loads no torch. Its threads wait in sockets; copies and hashes release the interpreter's lock.
"""

import signal
import socket
import sys
import threading
from typing import Any

from dunlin.effects import Address
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.remote.backends import BACKENDS, LinkSettings
from dunlin.engine.remote.helper import TransferHelper
from dunlin.engine.remote.options import HelperOptions
from dunlin.engine.remote.receiver import ChunkReceiver
from dunlin.messages.types import Header
from dunlin.runtime.parent_death import ParentGone, die_with_parent
from dunlin.wire.certificate_reloader import CertificateReloader
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT
from dunlin.wire.errors import StartError
from dunlin.wire.security import TlsIdentity

CANNOT_START = 2
_READ_BYTES = 1 << 16


class InstanceChannel:
    """The socket to the instance, in messages; `tell` may be called from any thread. Owns the socket."""

    def __init__(self, connected: socket.socket, sender: Address) -> None:
        self._socket = connected
        self._header = Header(sender)
        self._lock = threading.Lock()

    def tell(self, message: Any) -> None:
        """Send an event; dropped once the instance is gone."""
        data = frame(ENGINE_EVENT.encode(self._header, message))
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            pass  # `serve` sees the end

    def serve(self, helper: TransferHelper) -> None:
        """Pass on commands until the socket ends."""
        reader = FrameReader()
        while data := self._socket.recv(_READ_BYTES):
            for body in reader.feed(data):
                helper.receive(ENGINE_COMMAND.decode(body)[1])


def _certificates(options: HelperOptions) -> CertificateReloader | None:
    """The instance's own; raises StartError."""
    directory = options.tls_dir
    if directory is None:
        return None
    return CertificateReloader(lambda: TlsIdentity.load_for(directory, "instance", options.name))


def run(options: HelperOptions) -> int:
    """Serve the instance; returns the exit code."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group; the parent ends this one
        signal.signal(one, signal.SIG_IGN)

    def say(text: str) -> None:
        print(f"dunlin transfer helper {options.name}: {text}", file=sys.stderr, flush=True)

    try:
        die_with_parent(options.parent_pid)
        security = _certificates(options)
        backend, engine = BACKENDS[options.backend], Address("engine", options.name)
        answering = LinkSettings(security.server_context if security else None, options.stall_s)
        dialing = LinkSettings(security.client_context if security else None, options.stall_s)
        receiver = ChunkReceiver(options.listen, options.port, backend, answering, say)
    except (ParentGone, StartError, OSError) as error:
        say(f"cannot start: {error}")
        return CANNOT_START
    channel = InstanceChannel(socket.socket(fileno=options.socket_fd), engine)
    endpoint = f"{options.advertise}:{receiver.port}"
    helper = TransferHelper(engine, endpoint, receiver, backend, dialing, channel.tell)
    try:
        channel.serve(helper)
    except ConnectionResetError:
        pass
    return 0
