"""The watchdog of silent calls: what counts as silence, and when its thread ends."""

from dunlin.client.silence_watchdog import MAX_SILENT_TICKS, SilenceWatchdog, WatchdogTicker


def test_silence_counts_only_while_the_caller_waits() -> None:
    cancelled: list[int] = []
    watchdog = SilenceWatchdog()
    watchdog.set_cancel(lambda: cancelled.append(1))
    for _ in range(3 * MAX_SILENT_TICKS):
        watchdog.tick()  # the caller does not wait
    for _ in range(3):
        watchdog.start()
        for _ in range(MAX_SILENT_TICKS):
            watchdog.tick()
        watchdog.stop()
    assert cancelled == []
    watchdog.start()
    for _ in range(3 * MAX_SILENT_TICKS):
        watchdog.tick()
    assert cancelled == [1]
    assert watchdog.is_expired
    assert watchdog.call_failure("a:1").status == "UNAVAILABLE"


def test_a_ticker_ends_without_watchdogs() -> None:
    ticker, watchdog = WatchdogTicker(), SilenceWatchdog()
    ticker.add(watchdog)
    thread = ticker._thread
    assert thread is not None
    ticker.remove(watchdog)
    thread.join(300)
    assert not thread.is_alive()
    ticker.add(watchdog)
    assert ticker._thread is not None
    ticker.remove(watchdog)
