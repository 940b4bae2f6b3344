"""Waiting for child processes from an event loop.

Children are started by `subprocess.Popen`, never by asyncio: its fork runs gRPC's handlers, which can hang.
"""

import asyncio
import os
import subprocess


async def wait_for_exit(process: "subprocess.Popen[bytes]") -> int:
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
