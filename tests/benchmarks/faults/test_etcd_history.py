"""What a watcher of a counter was told, judged."""

import pytest

from benchmarks.faults.etcd_history import WatchHistory, check_history
from dunlin.membership.values import KeyValue
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent, WatchEvent


def put(number: int, revision: int | None = None) -> PutEvent:
    return PutEvent(KeyValue("/chaos/counter", b"%d" % number, 1, number + 10 if revision is None else revision))


def reset(*numbers: int) -> ResetEvent:
    return ResetEvent(99, tuple(put(number).item for number in numbers))


def tale(*events: WatchEvent, written: int) -> WatchHistory:
    return WatchHistory(
        {number: (number + 10, 0.0) for number in range(1, written + 1)}, [(0.0, event) for event in events]
    )


def test_a_tale_without_gaps_is_right() -> None:
    reading = check_history(tale(reset(0), put(1), put(2), reset(2), put(3), reset(5), put(6), written=6))
    assert (reading.wrong, reading.as_changes, reading.under_snapshots) == ([], 4, 2)


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([reset(0), put(1), put(3)], "3 came after 1"),
        ([reset(0), put(1), put(1), put(2), put(3)], "1 came after 1"),
        ([reset(0), put(1), put(2)], "the last one seen is 2, the last one written 3"),
        ([reset(0), put(1), put(2), put(3, 99)], "3 came with revision 99, not its own"),
        ([reset(0), put(1), put(2), reset(1), put(2), put(3)], "a snapshot with 1 came after 2"),
        ([reset(0), put(1), DeletedEvent("/chaos/counter", 12), put(2), put(3)], "the counter was deleted after 1"),
    ],
)
def test_a_tale_with_a_fault_is_told(events: list[WatchEvent], wrong: str) -> None:
    assert wrong in check_history(tale(*events, written=3)).wrong
