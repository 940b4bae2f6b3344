"""Child processes, and waiting for them from an event loop.

Children are started by `subprocess.Popen` or a fork server, never by asyncio: its fork runs gRPC's handlers, which can
hang.
"""

import asyncio
import os
from typing import Protocol


class RunningProcess(Protocol):
    """A child process: `subprocess.Popen`, or a `ForkedProcess`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Reap it if it ended; the exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code, negative for a signal."""

    def kill(self) -> None:
        """End it."""


async def wait_for_exit(process: RunningProcess) -> int:
    """The exit code, once there is one; waits on the kernel's handle of the process, so any event loop will do."""
    if process.poll() is None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        handle = os.pidfd_open(process.pid)
        try:
            loop.add_reader(handle, over.set)
            await over.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
    return process.wait()
