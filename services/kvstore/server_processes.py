"""Watches processes of this node for the core: an outlet that takes `AwaitProcessEnd` and answers `ProcessEnded`."""

import asyncio
import logging
import os

from dunlin.effects import Message
from dunlin.runtime.core_host import CoreHost
from services.kvstore.regions.writer_absences import PROCESSES, AwaitProcessEnd, ProcessEnded

_log = logging.getLogger(__name__)


class ProcessWatcher:
    """Owns one process descriptor per process that the core waits for.

    A process id that another process got meanwhile only makes the core wait longer: room is then quarantined
    until another incarnation of the writer joins.
    """

    def __init__(self, host: CoreHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._watched: dict[AwaitProcessEnd, int] = {}

    def send(self, message: Message) -> bool:
        """Watch the process that `message` names. Never full: there is one per writer."""
        if isinstance(message, AwaitProcessEnd) and message not in self._watched:
            self._watch(message)
        return True

    def close(self, reason: str) -> None:
        """Stop watching all processes."""
        for wanted in list(self._watched):
            self._forget(wanted)

    def _watch(self, wanted: AwaitProcessEnd) -> None:
        try:
            descriptor = os.pidfd_open(wanted.pid)
        except ProcessLookupError:
            self._host.deliver(PROCESSES, ProcessEnded(wanted.writer))
        except OSError as error:
            _log.warning("cannot watch process %d of %s: %s", wanted.pid, wanted.writer, error)
        else:
            self._watched[wanted] = descriptor
            self._loop.add_reader(descriptor, self._ended, wanted)

    def _ended(self, wanted: AwaitProcessEnd) -> None:
        self._forget(wanted)
        self._host.deliver(PROCESSES, ProcessEnded(wanted.writer))

    def _forget(self, wanted: AwaitProcessEnd) -> None:
        descriptor = self._watched.pop(wanted)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
