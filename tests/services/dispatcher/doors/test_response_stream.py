"""The pulse of a stream: a wait ends after its time, with one timer for many waits."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.dispatcher.doors.response_stream import WaitTimeout


class Loop:
    """Only the time and the timers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, in_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.timers.append((self.now_s + in_s, call, arguments))

    def run_until(self, now_s: float) -> None:
        while self.timers and min(self.timers)[0] <= now_s:
            due = min(self.timers)
            self.timers.remove(due)
            self.now_s = due[0]
            due[1](*due[2])
        self.now_s = now_s


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_a_wait_is_over_after_its_time_and_the_waiter_hears_of_it(loop: Loop) -> None:
    news = asyncio.Event()
    pulse = WaitTimeout(news)
    pulse.begin(1.0)
    loop.run_until(0.99)
    assert (pulse.is_expired, news.is_set()) == (False, False)
    loop.run_until(1.0)
    assert (pulse.is_expired, news.is_set()) == (True, True)
    pulse.end()
    assert not pulse.is_expired


def test_tokens_in_time_keep_it_going_with_one_timer(loop: Loop) -> None:
    pulse = WaitTimeout(asyncio.Event())
    for tick in range(100):
        loop.run_until(tick * 0.1)
        pulse.begin(1.0)
        assert len(loop.timers) == 1
        if tick < 99:
            pulse.end()
    loop.run_until(10.89)
    assert not pulse.is_expired
    loop.run_until(10.91)
    assert pulse.is_expired


def test_asking_again_does_not_begin_the_wait_anew(loop: Loop) -> None:
    pulse = WaitTimeout(asyncio.Event())
    pulse.begin(1.0)
    loop.run_until(0.6)
    pulse.begin(1.0)
    loop.run_until(1.01)
    assert pulse.is_expired


def test_without_a_wait_nothing_happens(loop: Loop) -> None:
    news = asyncio.Event()
    pulse = WaitTimeout(news)
    pulse.begin(1.0)
    pulse.end()
    loop.run_until(5.0)
    assert (pulse.is_expired, news.is_set(), loop.timers) == (False, False, [])
