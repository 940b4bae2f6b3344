"""The process watcher against real processes: killed, already gone, and still alive."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence

from dunlin.effects import Address, Effect, Joined, Message
from dunlin.runtime.core_host import CoreHost
from services.kvstore.regions.writer_absences import PROCESSES, AwaitProcessEnd, ProcessEnded
from services.kvstore.server_processes import ProcessWatcher

WRITER = Address("instance", "i0", 1)


class Ear:
    def __init__(self) -> None:
        self.heard: list[Message] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        if not isinstance(message, Joined):
            self.heard.append(message)
        return ()


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def watching() -> tuple[Ear, CoreHost, ProcessWatcher]:
    ear = Ear()
    host = CoreHost(ear, Address("kvstore", "kv", 2), asyncio.get_running_loop().time)
    watcher = ProcessWatcher(host)
    host.attach(PROCESSES, watcher)
    return ear, host, watcher


def test_the_end_of_a_process_is_told_once_and_not_before() -> None:
    async def scenario() -> None:
        ear, host, watcher = watching()
        process = sleeper()
        try:
            for _ in range(2):
                assert watcher.send(AwaitProcessEnd(WRITER, process.pid))
            await asyncio.sleep(0.2)
            assert ear.heard == []
        finally:
            process.kill()
        async with asyncio.timeout(300):
            while not ear.heard:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert ear.heard == [ProcessEnded(WRITER)]
        process.wait()
        watcher.send(AwaitProcessEnd(WRITER, process.pid))
        assert ear.heard == [ProcessEnded(WRITER)] * 2
        host.close()

    asyncio.run(scenario())


def test_a_closed_watcher_lets_go_of_the_process() -> None:
    async def scenario() -> None:
        ear, host, watcher = watching()
        process = sleeper()
        watcher.send(AwaitProcessEnd(WRITER, process.pid))
        host.close()
        process.kill()
        process.wait()
        await asyncio.sleep(0.1)
        assert ear.heard == []

    asyncio.run(scenario())
