"""A cluster is asked to stop by signals, which come at any moment."""

import signal
import sys
import threading
from types import FrameType
from typing import Any

from cli.launch.local_cluster import StopRequest


class _Interrupted:
    """Runs the handler of a signal before the line `number` of what is traced, where it must not wait for that."""

    def __init__(self, stop: StopRequest, number: int) -> None:
        self.lines, self.hangs = 0, False
        self._stop, self._number = stop, number

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._number:
                handler = threading.Thread(target=self._stop._heard, args=(signal.SIGINT, frame), daemon=True)
                handler.start()
                handler.join(20.0)
                self.hangs = handler.is_alive()
        return self.trace


def test_a_signal_at_any_line_of_a_wait_is_heard() -> None:
    traced, number = sys.gettrace(), 0
    while True:
        number += 1
        stop = StopRequest()
        at = _Interrupted(stop, number)
        sys.settrace(at.trace)
        try:
            stop.wait(0.0)
        finally:
            sys.settrace(traced)
        if at.lines < number:
            break
        assert not at.hangs, f"at line {number} of the wait"
        assert stop.wait(0.0)
    assert number > 2


def test_a_signal_ends_a_wait_and_all_that_follow() -> None:
    stop = StopRequest()
    assert not stop.wait(0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [stop.wait(1e6) for _ in range(4)] == [True] * 4
    assert stop.signals == 2
