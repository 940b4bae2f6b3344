"""A request's way from dispatcher to dispatcher, without one: what is sent next, what the caller sees, when it ends."""

import pytest

from dunlin.client.course import Course
from dunlin.client.endpoints import Endpoints
from dunlin.client.errors import Cancelled, DunlinError, InvalidRequest, QueueFull, Unavailable
from dunlin.client.quiet import MOST_TICKS, Quiet, Ticker
from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.messages.types import Finish, i32
from dunlin.wire.calls import CallFailed

LOST = CallFailed("UNAVAILABLE", "connection reset")
REQUEST = GenerateRequest(prompt="x", max_tokens=9, timeout_s=10.0)


def admitted(course: Course, *tokens: int, now_s: float = 0.0) -> Course:
    """Its first event came, and these tokens."""
    course.take(now_s, GenerateEvent("req-1-1", seed=77, prompt_tokens=3))
    for token in tokens:
        course.take(now_s, GenerateEvent("req-1-1", "t", i32([token])))
    return course


def test_before_it_is_admitted_the_request_itself_goes_to_each_dispatcher_once() -> None:
    course = Course(REQUEST, 3, 20.0, 0.0)
    assert course.request(1.0) == REQUEST
    assert [course.failed(1.0, LOST, "a"), course.failed(1.0, LOST, "b")] == [0.0, 0.0]
    assert course.request(1.0) == REQUEST
    with pytest.raises(Unavailable, match="c: connection reset") as raised:
        course.failed(1.0, LOST, "c")
    assert raised.value.__cause__ is LOST


def test_once_admitted_it_is_resumed_with_what_came() -> None:
    course = admitted(Course(REQUEST, 2, 20.0, 0.0), 5, 6)
    resumed = course.request(4.0)
    assert (resumed.resume_request, list(resumed.resume_tokens), resumed.seed) == ("req-1-1", [5, 6], 77)
    assert (resumed.prompt, resumed.max_tokens, resumed.timeout_s) == ("x", 9, 6.0)
    assert course.request(30.0).timeout_s == 0.001
    own = admitted(Course(GenerateRequest(prompt="x", seed=5), 2, 20.0, 0.0))
    assert (own.request(1.0).seed, own.request(1.0).timeout_s) == (5, None)


def test_the_caller_sees_one_beginning_and_no_beats() -> None:
    course = Course(REQUEST, 2, 20.0, 0.0)
    first = GenerateEvent("req-1-1", prompt_tokens=3, seed=77)
    text = GenerateEvent("req-1-1", "hi", i32([4]))
    last = GenerateEvent("req-1-1", finish=Finish.LENGTH)
    events = [GenerateEvent(""), first, GenerateEvent("req-1-1"), first, text, last]
    shown = [course.take(0.0, event) for event in events]
    assert shown == [None, first, None, None, text, last]
    assert course.is_over


def test_it_is_sought_until_patience_ends_with_pauses_between_the_rounds() -> None:
    course = admitted(Course(REQUEST, 2, 20.0, 0.0), 5, now_s=100.0)
    pauses = [course.failed(100.0, LOST, "a") for _ in range(6)]
    assert [pause == 0.0 for pause in pauses] == [True, False, True, False, True, False]
    assert 0.025 <= pauses[1] <= 0.075 < pauses[5] <= 0.3
    assert course.failed(119.9, LOST, "a") == 0.0
    with pytest.raises(Unavailable) as raised:
        course.failed(120.0, LOST, "a")
    assert raised.value.request == "req-1-1"


def test_a_sign_of_life_renews_patience_and_news_the_count() -> None:
    course = admitted(Course(REQUEST, 1, 20.0, 0.0), now_s=0.0)
    assert course.failed(1.0, LOST, "a") > 0.0
    course.take(19.0, GenerateEvent(""))
    long = [course.failed(38.9, LOST, "a") for _ in range(12)]
    assert max(long) > 0.3
    course.take(39.0, GenerateEvent("req-1-1", "t", i32([5])))
    assert course.failed(39.0, LOST, "a") <= 0.075


def test_a_full_queue_is_waited_for_only_by_what_was_admitted() -> None:
    full = CallFailed("RESOURCE_EXHAUSTED", "1024 requests wait", 2.5)
    with pytest.raises(QueueFull):
        Course(REQUEST, 2, 20.0, 0.0).failed(1.0, full, "a")
    assert admitted(Course(REQUEST, 1, 20.0, 0.0)).failed(1.0, full, "a") >= 2.5


@pytest.mark.parametrize(
    ("status", "kind"),
    [("INVALID_ARGUMENT", InvalidRequest), ("ALREADY_EXISTS", InvalidRequest), ("CANCELLED", Cancelled)],
)
def test_what_no_other_dispatcher_would_change_ends_it(status: str, kind: type[DunlinError]) -> None:
    with pytest.raises(kind):
        admitted(Course(REQUEST, 2, 20.0, 0.0)).failed(1.0, CallFailed(status, "no"), "a")


def test_a_reset_stream_is_a_lost_one() -> None:
    reset = CallFailed("INTERNAL", "Received RST_STREAM with error code 2")
    assert admitted(Course(REQUEST, 2, 20.0, 0.0)).failed(1.0, reset, "a") == 0.0


def test_endpoints_are_left_in_turn() -> None:
    endpoints = Endpoints("a:1, b:2,,c:3,a:1")
    assert endpoints.all == ("a:1", "b:2", "c:3")
    endpoints.leave("a:1")
    endpoints.leave("a:1")  # another stream's late news
    assert endpoints.in_turn() == ("b:2", "c:3", "a:1")
    endpoints.leave("b:2")
    endpoints.leave("c:3")
    assert endpoints.current == "a:1"
    assert Endpoints(["x:1", "y:2"]).all == ("x:1", "y:2")
    with pytest.raises(DunlinError, match="no endpoint"):
        Endpoints(" ,")


def test_only_silence_that_somebody_listens_to_counts() -> None:
    cancelled: list[int] = []
    quiet = Quiet()
    quiet.watch(lambda: cancelled.append(1))
    for _ in range(3 * MOST_TICKS):
        quiet.tick()  # nobody listens
    for _ in range(3):
        quiet.listen()
        for _ in range(MOST_TICKS):
            quiet.tick()
        quiet.heard()
    assert cancelled == []
    quiet.listen()
    for _ in range(3 * MOST_TICKS):
        quiet.tick()
    assert cancelled == [1]
    assert quiet.is_over
    assert quiet.failure("a:1").status == "UNAVAILABLE"


def test_a_ticker_ends_when_there_is_nobody_to_tick_for() -> None:
    ticker, quiet = Ticker(), Quiet()
    ticker.add(quiet)
    thread = ticker._thread
    assert thread is not None
    ticker.remove(quiet)
    thread.join(5.0)
    assert not thread.is_alive()
    ticker.add(quiet)
    assert ticker._thread is not None
    ticker.remove(quiet)
