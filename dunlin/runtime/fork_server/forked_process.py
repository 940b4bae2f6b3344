"""A child process that a fork server started, with the methods of `subprocess.Popen` that are used."""

import os
import select
import signal
import subprocess


def is_readable(fd: int, timeout_s: float | None) -> bool:
    """Whether there is something to read, or the end; waits so long at most (None: until there is)."""
    poll = select.poll()  # not select, which takes no number from 1024 on
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))


class ForkedProcess:
    """Owns one child process: it is this process's, which has to reap it.

    Attributes:
        pid: the process's number.
        returncode: the exit code, negative for a signal; None until it was reaped.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Reap it if it ended; the exit code, None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, for `timeout` seconds at most; the exit code. Raises TimeoutExpired."""
        if self.poll() is None:
            handle = os.pidfd_open(self.pid)
            try:
                ended = is_readable(handle, timeout)
            finally:
                os.close(handle)
            if not ended:
                raise subprocess.TimeoutExpired([f"process {self.pid}"], timeout or 0.0)
        code = self._reap(0)  # a tracer (strace, gdb) hears of the end first: it may be a moment until it can be reaped
        assert code is not None
        return code

    def kill(self) -> None:
        """End it, unless it has been reaped."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode
