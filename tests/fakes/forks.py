"""One fork server for all engines of a test process: each would load torch anew."""

import os
from functools import cache

from dunlin.engine.device.names import CPU
from dunlin.engine.process.options import ENGINE_MODULES, engine_environment
from dunlin.runtime.fork_server.client import ForkServer


@cache
def shared_forks() -> ForkServer:
    """The server; it ends with this process."""
    return ForkServer(ENGINE_MODULES, engine_environment(os.environ, CPU))
