"""The least CPU time of some turns of two ways."""

import pytest

from dunlin.engine.decoder.native import trial


def test_the_least_of_the_turns_counts_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three turns count, in which the one way takes 3, 1 and 2 seconds and the other 5, 6 and 4."""
    took = [0.25, 0.5, 3.0, 5.0, 1.0, 6.0, 2.0, 4.0]
    clock = iter([at for number, seconds in enumerate(took) for at in (10.0 * number, 10.0 * number + seconds)])
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    calls: list[str] = []
    assert trial.least_s((lambda: calls.append("one"), lambda: calls.append("other")), 3) == (1.0, 4.0)
    assert calls == ["one", "other"] * 4
