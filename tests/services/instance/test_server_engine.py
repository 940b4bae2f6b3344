"""The engine's process as an instance keeps it: started, spoken to, killed when stuck, replaced, never left behind."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Gone, Message
from dunlin.host import Host, wall_clock
from dunlin.messages.dispatch import Returned, Tokens
from dunlin.messages.types import Finish
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore
from services.instance.server_engine import EngineKeeper, EngineSettings
from tests.engine.build import make_checkpoint
from tests.services.instance.bench import MANAGER, ME, D, make_order, make_place

TIMEOUT_S = 60.0


class Listener:
    """A dispatcher's end of the stream."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def send(self, message: Message) -> bool:
        self.heard.append(message)
        return True

    def close(self, reason: str) -> None:
        pass

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


class Seat:
    """A real host, core and keeper, and a dispatcher that listens."""

    def __init__(self, model: Path, **config: Any) -> None:
        self.core = InstanceCore(ME, InstanceConfig(**config))
        self.host = Host(self.core, ME, wall_clock())
        self.listener = Listener()
        self.failures: list[str] = []
        self.keeper = EngineKeeper(self.host, EngineSettings(model, 3 << 20), self.failures.append)
        self.host.attach(D, self.listener)
        self.host.deliver(MANAGER, make_order())

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():
                await asyncio.sleep(0.01)
        assert holds(), what

    async def until_ready(self, restarts: int = 0) -> int:
        """The pid of an engine that can take steps."""
        report = self.core.report
        await self.until(lambda: report().ready and report().engine_restarts_total == restarts, "an engine")
        return report().engine_pid

    async def until_streaming(self) -> None:
        await self.until(lambda: bool(self.listener.of(Tokens)), "tokens")


@asynccontextmanager
async def seated(model: Path, **config: Any) -> AsyncIterator[Seat]:
    seat = Seat(model, **config)
    tasks = [asyncio.create_task(seat.keeper.run()), asyncio.create_task(seat.keeper.report_progress())]
    try:
        yield seat
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        seat.keeper.close()
        seat.host.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def test_an_engine_serves_is_killed_and_the_next_one_serves(model: Path) -> None:
    async def story() -> None:
        async with seated(model) as seat:
            first = await seat.until_ready()
            seat.host.deliver(D, make_place(1, tokens=8, max_tokens=200))
            await seat.until_streaming()
            os.kill(first, signal.SIGKILL)
            await seat.until(lambda: bool(seat.listener.of(Returned)), "the attempt back")
            assert not is_alive(first)
            assert "exit code -9" in seat.listener.of(Returned)[0].why.chosen
            assert not seat.core.report().ready
            second = await seat.until_ready(restarts=1)
            assert second != first
            seat.host.deliver(D, make_place(2, tokens=8, max_tokens=5))
            await seat.until(lambda: Finish.LENGTH in seat.listener.of(Tokens)[-1].finish, "the end of a text")
            assert seat.failures == []
        assert not is_alive(second)

    asyncio.run(story())


def test_a_stopped_engine_is_noticed_killed_and_replaced(model: Path) -> None:
    async def story() -> None:
        async with seated(model, stuck_s=0.5) as seat:
            first = await seat.until_ready()
            seat.host.deliver(D, make_place(1, tokens=8, max_tokens=200))
            await seat.until_streaming()
            os.kill(first, signal.SIGSTOP)
            stopped_s = asyncio.get_running_loop().time()
            await seat.until(lambda: bool(seat.listener.of(Returned)), "the attempt back")
            assert 0.4 <= asyncio.get_running_loop().time() - stopped_s <= 2.0
            assert not is_alive(first)
            await seat.until_ready(restarts=1)

    asyncio.run(story())


def test_an_engine_that_cannot_even_start_once_is_told_in_one_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with seated(tmp_path / "nowhere") as seat:
            await seat.until(lambda: bool(seat.failures), "the failure")
            assert len(seat.failures) == 1
            assert "nowhere" in seat.failures[0]
            assert "\n" not in seat.failures[0]
            await asyncio.sleep(0.5)
            assert seat.core.report().engine_pid == 0 or not is_alive(seat.core.report().engine_pid)

    asyncio.run(story())


def test_the_engines_memory_outlives_it_and_its_counter_goes_on(model: Path) -> None:
    async def story() -> None:
        async with seated(model) as seat:
            first = await seat.until_ready()
            seat.host.deliver(D, make_place(1, tokens=8, max_tokens=200))
            await seat.until(lambda: seat.core.report().safepoints > 10, "progress")
            before = seat.core.report().safepoints
            os.kill(first, signal.SIGKILL)
            await seat.until_ready(restarts=1)
            assert seat.core.report().safepoints >= before
            seat.host.deliver(D, Gone("done"))

    asyncio.run(story())
