"""How the processes of a cluster start: services by fork servers, which have imported all they need; etcd by itself."""

import subprocess
from collections.abc import Mapping

from cli.launch.process_specs import ProcessSpec
from dunlin.engine.device.names import CPU
from dunlin.engine.process.options import ENGINE_MODULES, engine_environment
from dunlin.runtime.child_exit import RunningProcess
from dunlin.runtime.fork_server.client import ForkServer

_SERVICES = ("monitor", "global_manager", "kvstore", "dispatcher")
_INSTANCE = "instance"
_SERVER_FD = 3
"""Of an instance: the connection to a fork server of its own, for its engines."""


class ProcessStarter:
    """Owns two fork servers: one for services, one for instances, which has loaded torch for their engines."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the servers. `environment`: of all processes."""
        self._environment = environment
        self._services = ForkServer([f"services.{role}.__main__" for role in _SERVICES], environment)
        modules = [f"services.{_INSTANCE}.__main__", *ENGINE_MODULES]
        self._instances = ForkServer(modules, engine_environment(environment, CPU))

    def is_ready(self) -> bool:
        """Whether services start without waiting for what they import."""
        return self._services.is_ready() and self._instances.is_ready()

    def start(self, spec: ProcessSpec, output: int) -> RunningProcess:
        """Start a process that writes to the descriptor `output`, in a process group of its own.

        Raises:
            OSError: there is no such program, memory or process to be had.
        """
        if spec.role in _SERVICES:
            return self._services.spawn(spec.command, self._environment, output=output, own_group=True)
        if spec.role == _INSTANCE:
            command = (*spec.command, "--fork-server-fd", str(_SERVER_FD))
            return self._instances.spawn(
                command, self._environment, output=output, own_group=True, server_fd=_SERVER_FD
            )
        return start_program(spec, output, self._environment)

    def close(self) -> None:
        """End the servers."""
        self._services.close()
        self._instances.close()


def start_program(spec: ProcessSpec, output: int, environment: Mapping[str, str]) -> RunningProcess:
    """Start any program, as `ProcessStarter.start` does."""
    return subprocess.Popen(
        spec.command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        # Not a session: a kernel may share cores among sessions, and niceness counts within one alone.
        process_group=0,
    )
