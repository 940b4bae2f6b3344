"""The open-loop generator against doors that answer as told."""

import asyncio
from collections.abc import AsyncGenerator

from dunlin.messages.types import i32
from dunlin.workload.loadgen.load_generator import (
    LoadGenerator,
    LoadTarget,
    RequestFailed,
    RequestRejected,
    StreamedTokens,
)
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job


def job(at_s: float = 0.0, tokens: int = 3) -> Job:
    return Job(at_s, i32([1, 2]), tokens, False)


def run(door: LoadTarget, *jobs: Job, **options: int) -> list[RequestRecord]:
    return asyncio.run(LoadGenerator(jobs, door, **options).run())  # type: ignore[arg-type]


class Counting:
    """Streams 0, 1, 2 … two at a time, the last ones alone."""

    def __init__(self, short_by: int = 0) -> None:
        self.short_by = short_by
        self.closed = 0

    async def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        try:
            yield StreamedTokens((), "req-1-1")
            for start in range(0, job.max_tokens - self.short_by, 2):
                await asyncio.sleep(0)
                yield StreamedTokens(range(start, min(start + 2, job.max_tokens - self.short_by)))
        finally:
            self.closed += 1


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        yield StreamedTokens([5])
        raise self.error


class Never:
    """Streams that wait for each other: a second one can only arrive if nobody waits for the first."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.all_here = asyncio.Event()

    async def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        self.needed -= 1
        if self.needed == 0:
            self.all_here.set()
        await self.all_here.wait()
        yield StreamedTokens(range(job.max_tokens))


class Slow:
    async def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        await asyncio.sleep(0.05)
        yield StreamedTokens(range(job.max_tokens))


def test_tokens_times_and_names_are_recorded() -> None:
    door = Counting()
    (found,) = run(door, job(tokens=3))
    assert (found.outcome, found.request, found.tokens) == ("ok", "req-1-1", [0, 1, 2])
    assert found.token_s == sorted(found.token_s)
    assert found.token_s[0] == found.token_s[1], "tokens of one message came at one time"
    assert found.end_s >= found.token_s[-1]
    assert door.closed == 1


def test_the_loop_is_open() -> None:
    records = run(Never(3), job(0), job(0.01), job(0.02))
    assert [record.outcome for record in records] == ["ok"] * 3


def test_nothing_is_sent_before_its_time() -> None:
    records = run(Counting(), job(0.0), job(0.05))
    assert records[1].sent_s >= 0.05


def test_a_refusal_and_an_error_are_told_apart() -> None:
    (refused,) = run(Failing(RequestRejected("full")), job())
    (failed,) = run(Failing(RequestFailed("lost")), job())
    assert (refused.outcome, refused.detail) == ("refused", "full")
    assert (failed.outcome, failed.detail, failed.tokens) == ("error", "lost", [5])


def test_a_stream_that_ends_early_is_an_error() -> None:
    (found,) = run(Counting(short_by=1), job(tokens=5))
    assert (found.outcome, found.detail) == ("error", "req-1-1: ended after 4 of 5 tokens")


def test_a_bound_on_open_requests_holds_and_is_an_error() -> None:
    records = run(Slow(), job(), job(), job(), limit_open=2)
    assert [record.outcome for record in records] == ["ok", "ok", "error"]
    assert "2 open requests" in records[2].detail


def test_the_observer_hears_everything_and_the_end() -> None:
    heard: list[int | None] = []
    load = LoadGenerator(
        [job(tokens=3)], Counting(), lambda record, arrived: heard.append(len(arrived.tokens) if arrived else None)
    )
    asyncio.run(load.run())
    assert heard == [0, 2, 1, None]
