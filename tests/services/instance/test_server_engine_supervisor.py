"""The engine's process as an instance keeps it: started, spoken to, killed when stuck, replaced, never left behind."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Message
from dunlin.messages.dispatch import Failed, Poisoned, Returned, Tokens
from dunlin.messages.engine import EngineExited, EngineReady
from dunlin.messages.types import FinishReason, i32
from dunlin.runtime.core_host import CoreHost, wall_clock
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore
from services.instance.server_engine_supervisor import (
    EngineLaunchSettings,
    EngineProcessSupervisor,
    exit_description,
    kv_bytes_of,
)
from tests.engine.build import damage, make_checkpoint
from tests.fakes.forks import shared_forks
from tests.fakes.poison_engine import POISON
from tests.services.instance.bench import MANAGER, ME, D, make_order, make_place
from tests.settings import configured

TIMEOUT_S = 300.0


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

    def __init__(self, model: Path, engine: dict[str, Any], **config: Any) -> None:
        self.core = InstanceCore(ME, configured(InstanceConfig, role="instance", **config))
        self.host = CoreHost(self.core, ME, wall_clock())
        self.listener = Listener()
        self.failures: list[str] = []
        settings = EngineLaunchSettings(model, **{"kv_bytes": 3 << 20, **engine})
        self.keeper = EngineProcessSupervisor(self.host, settings, shared_forks(), self.failures.append)
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

    async def until_one_stands_by(self) -> int:
        """Its pid."""
        standby = self.keeper.standby
        await self.until(lambda: (found := standby()) is not None and found.is_prepared, "one that stands by")
        found = standby()
        assert found is not None
        return found.pid

    async def until_streaming(self, tokens: int = 1) -> None:
        await self.until(lambda: len(self.text(1)) >= tokens, "tokens")

    def text(self, request: int) -> list[int]:
        """The tokens of a request so far; fails if one is missing or repeated."""
        found: dict[int, int] = {}
        for message in self.listener.of(Tokens):
            for one, position, token in zip(message.request, message.position, message.token, strict=True):
                if one == request:
                    assert position not in found, f"token {position} comes twice"
                    found[position] = token
        assert list(found) == list(range(min(found, default=0), min(found, default=0) + len(found)))
        return list(found.values())

    def has_ended(self, request: int) -> bool:
        for message in self.listener.of(Tokens):
            for one, finish in zip(message.request, message.finish, strict=True):
                if one == request and finish != FinishReason.RUNNING:
                    return True
        return False


@asynccontextmanager
async def seated(model: Path, engine: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[Seat]:
    patient = ("recovery__engine_grace_s", "engine_watch__stuck_s", "engine_watch__load_stuck_s")
    seat = Seat(model, engine or {}, **{**dict.fromkeys(patient, TIMEOUT_S), **config})
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


def libraries_of(pid: int) -> set[str]:
    """The shared libraries that a process has mapped."""
    return {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if ".so" in line}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


DETERMINISTIC = {"deterministic": True}
LENGTH = 300  # streams still when the signal arrives, however fast the engine is


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[int, list[int]]:
    """What requests 1 and 2 are answered when nothing happens."""

    async def story() -> dict[int, list[int]]:
        async with seated(model, DETERMINISTIC) as seat:
            await seat.until_ready()
            for request in (1, 2):
                seat.host.deliver(D, make_place(request, tokens=8, max_tokens=LENGTH))
            await seat.until(lambda: all(seat.has_ended(request) for request in (1, 2)), "the ends")
            return {request: seat.text(request) for request in (1, 2)}

    return asyncio.run(story())


def stop_for_good(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def kill_it(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("end", "stuck_s"), [(kill_it, TIMEOUT_S), (stop_for_good, 3.0)])
def test_after_the_end_of_its_engine_a_text_goes_on_as_if_nothing_had_happened(
    model: Path, expected: dict[int, list[int]], end: Callable[[int], None], stuck_s: float
) -> None:
    async def story() -> None:
        async with seated(model, DETERMINISTIC, engine_watch__stuck_s=stuck_s) as seat:
            first = await seat.until_ready()
            for request in expected:
                seat.host.deliver(D, make_place(request, tokens=8, max_tokens=LENGTH))
            await seat.until_streaming(tokens=20)
            await seat.until(lambda: seat.core.report().safepoints > 10, "progress")
            before = seat.core.report().safepoints
            end(first)
            second = await seat.until_ready(restarts=1)
            assert second != first
            assert not is_alive(first)
            assert seat.core.report().safepoints >= before, "the counter is in the memory that outlives an engine"
            await seat.until(lambda: all(seat.has_ended(request) for request in expected), "the ends")
            assert {request: seat.text(request) for request in expected} == expected
            report = seat.core.report()
            assert (report.revived_tokens_total >= 2 * 20, report.recomputed_tokens_total) == (True, 0)
            assert report.prefill_tokens_total == 2 * 8
            assert (seat.listener.of(Returned), seat.failures) == ([], [])
        assert not is_alive(second)

    asyncio.run(story())


def ranks_of(engine: int) -> list[int]:
    """The processes that its first one has started."""
    return [int(pid) for pid in Path(f"/proc/{engine}/task/{engine}/children").read_text().split()]


def test_after_the_end_of_a_rank_a_text_goes_on(model: Path, expected: dict[int, list[int]]) -> None:
    async def story() -> None:
        async with seated(model, {"ranks": 2}) as seat:
            first = await seat.until_ready()
            (rank,) = ranks_of(first)
            seat.host.deliver(D, make_place(1, tokens=8, max_tokens=LENGTH))
            await seat.until_streaming(tokens=20)
            os.kill(rank, signal.SIGKILL)
            second = await seat.until_ready(restarts=1)
            assert not is_alive(first)
            assert len(ranks_of(second)) == 1
            await seat.until(lambda: seat.has_ended(1), "the end")
            assert seat.text(1) == expected[1]
            assert seat.core.report().recomputed_tokens_total == 0
            assert seat.failures == []

    asyncio.run(story())


def test_an_engine_that_stands_by_takes_over(model: Path, expected: dict[int, list[int]]) -> None:
    async def story() -> None:
        async with seated(model, {**DETERMINISTIC, "standby": True}) as seat:
            first = await seat.until_ready()
            heir = await seat.until_one_stands_by()
            seat.host.deliver(D, make_place(1, tokens=8, max_tokens=LENGTH))
            await seat.until_streaming(tokens=20)
            loaded = libraries_of(heir)
            os.kill(first, signal.SIGKILL)
            assert await seat.until_ready(restarts=1) == heir
            assert not seat.has_ended(1), "the text was too short to outlive its engine"
            await seat.until_streaming(tokens=len(seat.text(1)) + 1)
            assert libraries_of(heir) == loaded, "a library was loaded while a request waited"
            assert any("libtorch" in library for library in loaded)
            await seat.until(lambda: seat.has_ended(1), "the end")
            assert seat.text(1) == expected[1]
            assert await seat.until_one_stands_by() != heir

    asyncio.run(story())


def test_a_request_without_a_number_fails_beside_one_that_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with seated(damage(make_checkpoint(tmp_path), 77)) as seat:
            await seat.until_ready()
            seat.host.deliver(D, make_place(1, tokens=8, max_tokens=LENGTH))
            seat.host.deliver(D, make_place(2, known=[5, 77, 7], max_tokens=LENGTH))
            await seat.until(lambda: seat.has_ended(1), "the end")
            (failed,) = seat.listener.of(Failed)
            assert failed.request == 2
            assert (len(seat.text(1)), seat.text(2), seat.core.report().engine_restarts_total) == (LENGTH, [], 0)

    asyncio.run(story())


def test_a_poison_request_is_found_and_stopped_and_the_others_hear_nothing_of_it(
    model: Path, expected: dict[int, list[int]]
) -> None:
    async def story() -> None:
        engine = {**DETERMINISTIC, "module": "tests.fakes.poison_engine", "standby": True}
        async with seated(model, engine) as seat:
            await seat.until_ready()
            for request in expected:
                seat.host.deliver(D, make_place(request, tokens=8, max_tokens=LENGTH))
            await seat.until_streaming(tokens=5)
            seat.host.deliver(D, make_place(3, known=[5, POISON, 7], max_tokens=LENGTH))
            await seat.until(lambda: bool(seat.listener.of(Poisoned)), "the verdict")
            assert [said.request for said in seat.listener.of(Poisoned)] == [3]
            await seat.until(lambda: all(seat.has_ended(request) for request in expected), "the ends")
            assert {request: seat.text(request) for request in expected} == expected
            report = seat.core.report()
            assert (report.engine_restarts_total, report.poisoned_total, seat.text(3)) == (3, 1, [])
            assert seat.listener.of(Returned) == []

    asyncio.run(story())


def test_an_engine_that_will_take_too_long_is_not_waited_for(model: Path) -> None:
    async def story() -> None:
        async with seated(model, recovery__engine_grace_s=0.01) as seat:
            first = await seat.until_ready()
            seat.host.deliver(D, make_place(1, tokens=8, max_tokens=200))
            await seat.until_streaming()
            os.kill(first, signal.SIGKILL)
            await seat.until(lambda: bool(seat.listener.of(Returned)), "the attempt back")
            assert "engine gone: ended by SIGKILL" in seat.listener.of(Returned)[0].why.chosen
            assert not seat.core.report().ready
            await seat.until_ready(restarts=1)
            seat.host.deliver(D, make_place(2, tokens=8, max_tokens=5))
            await seat.until(lambda: seat.has_ended(2), "the end of a text")

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


@pytest.mark.parametrize("standby", [False, True])
def test_the_next_engine_has_as_many_slots_whatever_is_free_by_then(model: Path, standby: bool) -> None:
    """The first finds its KV; this one's device grows with each engine."""
    engine = {
        "kv_bytes": 0, "gpu_share": 0.5, "step_tokens": 16, "step_rows": 2, "standby": standby,
        "module": "tests.fakes.roomy_engine",
    }  # fmt: skip

    async def story() -> None:
        async with seated(model, engine) as seat:
            first = await seat.until_ready()
            slots = seat.core.report().capacity_slots
            assert 45_000 < slots < 50_000
            if standby:
                await seat.until_one_stands_by()
            os.kill(first, signal.SIGKILL)
            assert await seat.until_ready(restarts=1) != first
            assert seat.core.report().capacity_slots == slots

    asyncio.run(story())


@pytest.mark.parametrize("granules", [1, 7, 100])
def test_as_many_slots_take_as_many_bytes(granules: int) -> None:
    """Also where a granule holds no whole number of slots."""
    slot_bytes, granule = 768, 1 << 16
    slots = granules * granule // slot_bytes
    ready = EngineReady(i32([0, 1, 2]), slots, 1, "", "float32", 3 * slot_bytes, 4096, 512, model_layers=3)
    assert kv_bytes_of(ready, granule) == 3 * granules * granule


@pytest.mark.parametrize(
    ("exited", "words"),
    [
        (EngineExited(3, 0), "exit code 3"),
        (EngineExited(0, 9), "ended by SIGKILL"),
        (EngineExited(0, 40), "ended by signal 40"),
        (None, "it spoke nonsense"),
    ],
)
def test_how_an_engine_ended_is_said_in_words(exited: EngineExited | None, words: str) -> None:
    assert exit_description(exited) == words
