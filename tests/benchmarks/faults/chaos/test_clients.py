"""The clients of a live run record what they are told, and how it ended, whatever the SDK raises."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from benchmarks.faults.chaos import clients as chaos_clients
from benchmarks.faults.chaos.clients import ChaosClients, plain
from benchmarks.faults.chaos.rounds import LiveRequest
from benchmarks.faults.chaos.streams import RecordedStream, StreamEnd
from dunlin.client import DeadlineExceeded, DunlinError, GenerationFailed, InvalidRequest, QueueFull, Unavailable
from dunlin.messages.public import GenerateEvent
from dunlin.messages.types import FinishReason, i32

ADMITTED = GenerateEvent("req-1-1")
WHOLE = GenerateEvent("req-1-1", tokens=i32([5, 6]), finish=FinishReason.LENGTH)


class ScriptedClient:
    """Each call of `stream` plays the next script: events, an error, or (None) silence for ever."""

    def __init__(self, *scripts: list[GenerateEvent | DunlinError | None]) -> None:
        self.scripts = list(scripts)
        self.calls: list[dict[str, Any]] = []

    async def stream(self, prompt: Any, **options: Any) -> AsyncGenerator[GenerateEvent, None]:
        self.calls.append(options)
        for step in self.scripts.pop(0):
            if step is None:
                await asyncio.Event().wait()
            elif isinstance(step, DunlinError):
                raise step
            else:
                yield step

    async def close(self) -> None:
        pass


def request(**more: Any) -> LiveRequest:
    return LiveRequest(0, 0.0, (1,), 2, None, "one", 0, **more)


def played(ask: LiveRequest, *clients: ScriptedClient) -> list[RecordedStream]:
    """The streams that ended, in order of their ends."""
    ended: list[RecordedStream] = []

    async def play() -> None:
        async with ChaosClients(["a:1", "b:1"], "m:1", ended.append) as made:
            made.clients = list(clients)  # type: ignore[arg-type]
            made.send(ask)
            await made.all_ended()

    asyncio.run(play())
    return ended


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_clients, "RETRY_S", 0.0)


def test_a_whole_stream_is_recorded_piece_by_piece() -> None:
    first = GenerateEvent("req-1-1", tokens=i32([5]))
    last = GenerateEvent("", tokens=i32([6]), finish=FinishReason.LENGTH)
    (stream,) = played(request(), ScriptedClient([ADMITTED, first, last]))
    assert (stream.end, stream.finish, stream.public_id) == (StreamEnd.FINISHED, FinishReason.LENGTH, "req-1-1")
    assert [tokens for _, tokens in stream.pieces] == [(5,), (6,)]
    assert stream.after_end == 0


def test_an_event_after_the_last_is_counted() -> None:
    (stream,) = played(request(), ScriptedClient([WHOLE, GenerateEvent("")]))
    assert (stream.after_end, stream.finish) == (1, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (QueueFull("full", 1.0), StreamEnd.REFUSED),
        (DeadlineExceeded("late"), StreamEnd.DEADLINE),
        (GenerationFailed("given up"), StreamEnd.FAILED),
        (Unavailable("gone"), StreamEnd.UNAVAILABLE),
        (InvalidRequest("why"), StreamEnd.STRANGE),
    ],
)
def test_each_error_after_admission_is_the_end(error: DunlinError, end: StreamEnd) -> None:
    (stream,) = played(request(), ScriptedClient([ADMITTED, error]))
    assert (stream.end, stream.tries) == (end, 1)
    assert type(error).__name__ in stream.detail


def test_where_no_dispatcher_answers_the_next_call_begins_at_the_other_one() -> None:
    one, other = ScriptedClient([Unavailable("gone")], [WHOLE]), ScriptedClient([Unavailable("gone")])
    (stream,) = played(request(key="k"), one, other)
    assert (stream.end, stream.tries) == (StreamEnd.FINISHED, 3)
    assert {call["idempotency_key"] for call in [*one.calls, *other.calls]} == {"k"}
    assert (len(one.calls), len(other.calls)) == (2, 1)


def test_a_client_that_leaves_does_not_wait_and_one_that_stays_waits_no_longer_than_its_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (left,) = played(request(disconnect_s=0.0), ScriptedClient([None]))
    assert left.end is StreamEnd.LEFT
    monkeypatch.setattr(chaos_clients, "PATIENCE_S", 0.0)
    (waits,) = played(request(), ScriptedClient([None]))
    assert waits.end is StreamEnd.OPEN


def test_a_second_client_begins_at_the_other_dispatcher_with_the_same_key() -> None:
    one, other = ScriptedClient([WHOLE]), ScriptedClient([WHOLE])
    streams = played(request(key="k", second_client_s=0.0), one, other)
    assert [stream.end for stream in streams] == [StreamEnd.FINISHED] * 2
    assert [call["idempotency_key"] for call in [*one.calls, *other.calls]] == ["k", "k"]


def test_alone_a_request_has_neither_key_nor_deadline_and_waits_for_its_turn() -> None:
    ask = request(key="k", second_client_s=1.0, disconnect_s=1.0, timeout_s=1.0, is_batch=True)
    assert plain(ask) == request()
    client = ScriptedClient([QueueFull("full", 1.0)], [WHOLE])

    async def play() -> list[RecordedStream]:
        async with ChaosClients(["a:1"], "m:1", lambda stream: None) as made:
            made.clients = [client]  # type: ignore[list-item]
            return await made.alone([ask], 1)

    (stream,) = asyncio.run(play())
    assert (stream.end, stream.tokens) == (StreamEnd.FINISHED, [5, 6])
    assert all(not call["idempotency_key"] and call["timeout_s"] is None for call in client.calls)


def test_batch_work_may_wait_until_nothing_new_comes_and_is_told_if_it_still_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chaos_clients, "PATIENCE_S", 0.0)
    (waits,) = played(request(is_batch=True), ScriptedClient([ADMITTED, None]))
    assert waits.end is StreamEnd.OPEN
