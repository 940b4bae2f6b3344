"""The least CPU time of some turns."""

import pytest

from dunlin.engine.decoder.native import trial


def test_the_least_of_the_turns_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    calls: list[int] = []
    assert trial.least_s(lambda: calls.append(1), 3) == 1.0
    assert len(calls) == 3
