"""A request's way from dispatcher to dispatcher, without one: what is sent next, what the caller sees, when it ends."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest

from dunlin.client import AsyncClient, Client, async_client, sync_client
from dunlin.client.errors import Cancelled, DunlinError, InvalidRequest, QueueFull, Unavailable
from dunlin.client.resumable_call import ResumableCall
from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.messages.types import FinishReason, f32, i32
from dunlin.wire.rpc.calls import CallFailed

LOST = CallFailed("UNAVAILABLE", "connection reset")
REQUEST = GenerateRequest(prompt="x", max_tokens=9, timeout_s=10.0)


def admitted(call: ResumableCall, *tokens: int, now_s: float = 0.0) -> ResumableCall:
    """Its first event came, and these tokens."""
    call.on_event(now_s, GenerateEvent("req-1-1", seed=77, prompt_tokens=3))
    for token in tokens:
        call.on_event(now_s, GenerateEvent("req-1-1", "t", i32([token])))
    return call


def test_before_it_is_admitted_the_request_itself_goes_to_each_dispatcher_once() -> None:
    call = ResumableCall(REQUEST, 3, 20.0, 0.0)
    assert call.next_request(1.0) == REQUEST
    assert [call.on_failure(1.0, LOST, "a"), call.on_failure(1.0, LOST, "b")] == [0.0, 0.0]
    assert call.next_request(1.0) == REQUEST
    with pytest.raises(Unavailable, match="c: connection reset") as raised:
        call.on_failure(1.0, LOST, "c")
    assert raised.value.__cause__ is LOST


def test_once_admitted_it_is_resumed_with_what_came() -> None:
    call = admitted(ResumableCall(REQUEST, 2, 20.0, 0.0), 5, 6)
    resumed = call.next_request(4.0)
    assert (resumed.resume_request, list(resumed.resume_tokens), resumed.seed) == ("req-1-1", [5, 6], 77)
    assert (resumed.prompt, resumed.max_tokens, resumed.timeout_s) == ("x", 9, 6.0)
    assert call.next_request(30.0).timeout_s == 0.001
    own = admitted(ResumableCall(GenerateRequest(prompt="x", seed=5), 2, 20.0, 0.0))
    assert (own.next_request(1.0).seed, own.next_request(1.0).timeout_s) == (5, None)


def test_it_is_resumed_with_the_log_probabilities_that_came() -> None:
    call = admitted(ResumableCall(REQUEST, 2, 20.0, 0.0))
    scores = GenerateEvent("req-1-1", prompt_logprobs=f32([-1.0, -2.0]), prompt_ranks=i32([1, 2]))
    assert call.on_event(1.0, scores) is scores
    assert call.next_request(1.0).resume_scored == 2
    call.on_event(1.0, scores)
    assert (call.next_request(1.0).resume_scored, list(call.next_request(1.0).resume_tokens)) == (4, [])


def test_the_caller_sees_one_first_event_and_no_keepalives() -> None:
    call = ResumableCall(REQUEST, 2, 20.0, 0.0)
    first = GenerateEvent("req-1-1", prompt_tokens=3, seed=77)
    text = GenerateEvent("req-1-1", "hi", i32([4]))
    last = GenerateEvent("req-1-1", finish=FinishReason.LENGTH)
    events = [GenerateEvent(""), first, GenerateEvent("req-1-1"), first, text, last]
    shown = [call.on_event(0.0, event) for event in events]
    assert shown == [None, first, None, None, text, last]
    assert call.is_done


def test_it_is_sought_until_patience_ends_with_pauses_between_the_rounds() -> None:
    call = admitted(ResumableCall(REQUEST, 2, 20.0, 0.0), 5, now_s=100.0)
    pauses = [call.on_failure(100.0, LOST, "a") for _ in range(6)]
    assert [pause == 0.0 for pause in pauses] == [True, False, True, False, True, False]
    assert 0.025 <= pauses[1] <= 0.075 < pauses[5] <= 0.3
    assert call.on_failure(119.9, LOST, "a") == 0.0
    with pytest.raises(Unavailable) as raised:
        call.on_failure(120.0, LOST, "a")
    assert raised.value.request == "req-1-1"


def test_a_sign_of_life_renews_patience_and_news_the_count() -> None:
    call = admitted(ResumableCall(REQUEST, 1, 20.0, 0.0), now_s=0.0)
    assert call.on_failure(1.0, LOST, "a") > 0.0
    call.on_event(19.0, GenerateEvent(""))
    long = [call.on_failure(38.9, LOST, "a") for _ in range(12)]
    assert max(long) > 0.3
    call.on_event(39.0, GenerateEvent("req-1-1", "t", i32([5])))
    assert call.on_failure(39.0, LOST, "a") <= 0.075


def test_the_time_in_which_the_caller_did_not_read_takes_no_patience() -> None:
    call = admitted(ResumableCall(REQUEST, 1, 20.0, 0.0), 5, now_s=0.0)
    call.on_read(500.0)
    assert call.on_failure(519.9, LOST, "a") > 0.0
    with pytest.raises(Unavailable):
        call.on_failure(520.0, LOST, "a")


def lost_after_a_token() -> Callable[..., Generator[GenerateEvent, None, None]]:
    """Opens the stream of a request; the first one is lost after a token, the second one brings the rest."""
    opened: list[GenerateRequest] = []

    def events(*_: Any) -> Generator[GenerateEvent, None, None]:
        opened.append(REQUEST)
        yield GenerateEvent("req-1-1", seed=77)
        if len(opened) == 1:
            yield GenerateEvent("req-1-1", "a", i32([5]))
            raise LOST
        yield GenerateEvent("req-1-1", "b", i32([6]), finish=FinishReason.LENGTH)

    return events


class Clock:
    """In place of the module `time` of a client; the caller takes 100 s for each event."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleep = time.sleep

    def monotonic(self) -> float:
        return self.now_s

    def after(self, event: GenerateEvent) -> str:
        self.now_s += 100.0
        return event.text


def test_both_clients_resume_for_a_caller_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = lost_after_a_token()

    async def stream_async(*_: Any) -> AsyncGenerator[GenerateEvent, None]:
        for event in opens():
            yield event

    async def read(clock: Clock) -> list[str]:
        async with AsyncClient("127.0.0.1:1") as client:
            return [clock.after(event) async for event in client.stream("x")]

    clocks = Clock(), Clock()
    for module, clock in zip((sync_client, async_client), clocks, strict=True):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(sync_client, "stream_blocking", lost_after_a_token())
    monkeypatch.setattr(async_client, "stream_async", stream_async)
    with Client("127.0.0.1:1") as client:
        assert [clocks[0].after(event) for event in client.stream("x")] == ["", "a", "b"]
    assert asyncio.run(read(clocks[1])) == ["", "a", "b"]


def test_a_full_queue_is_waited_for_only_by_what_was_admitted() -> None:
    full = CallFailed("RESOURCE_EXHAUSTED", "1024 requests wait", 2.5)
    with pytest.raises(QueueFull):
        ResumableCall(REQUEST, 2, 20.0, 0.0).on_failure(1.0, full, "a")
    assert admitted(ResumableCall(REQUEST, 1, 20.0, 0.0)).on_failure(1.0, full, "a") >= 2.5


@pytest.mark.parametrize(
    ("status", "kind"),
    [("INVALID_ARGUMENT", InvalidRequest), ("ALREADY_EXISTS", InvalidRequest), ("CANCELLED", Cancelled)],
)
def test_what_no_other_dispatcher_would_change_ends_it(status: str, kind: type[DunlinError]) -> None:
    with pytest.raises(kind):
        admitted(ResumableCall(REQUEST, 2, 20.0, 0.0)).on_failure(1.0, CallFailed(status, "no"), "a")


def test_a_reset_stream_is_a_lost_one() -> None:
    reset = CallFailed("INTERNAL", "Received RST_STREAM with error code 2")
    assert admitted(ResumableCall(REQUEST, 2, 20.0, 0.0)).on_failure(1.0, reset, "a") == 0.0
