"""Deadlines of several readers: each has the time that it asked for, and the request ends with the last."""

import pytest

from dunlin.effects import Address, Send
from dunlin.messages.dispatch import Cancel, NotHeld
from dunlin.messages.door import Abort, Delta
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.requests.timers import DeadlineDue
from tests.services.dispatcher import factories
from tests.services.dispatcher.adoption_factories import Bench, named
from tests.services.dispatcher.factories import A, client, member, only, rows, submit, target


def running(timeout_s: float | None) -> factories.Bench:
    """A named request of client "c" that has its first token."""
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named(timeout_s=timeout_s))
    bench.give(A, NotHeld(1, 1))
    bench.give(A, rows((1, 2, 3, 70)))
    return bench


def ended(reader: Address, text: str) -> Send:
    detail = f"{text} s are over: 1 of 4 tokens were generated"
    return Send(reader, Delta(i32(), finish=FinishReason.DEADLINE, detail=detail))


@pytest.mark.parametrize("later_s", [9.0, None])
def test_a_retry_that_may_wait_longer_outlasts_the_first_client(later_s: float | None) -> None:
    bench = running(2.0)
    bench.give(client("c"), Abort())
    bench.give(client("d"), named(timeout_s=later_s), 1.0)
    assert bench.fire(DeadlineDue) == []
    assert bench.give(A, rows((1, 2, 4, 71))) == [Send(client("d"), Delta(i32([71])))]


def test_a_reader_whose_time_is_over_leaves_the_others_alone() -> None:
    bench = running(9.0)
    bench.give(client("d"), named(timeout_s=2.0), 1.0)
    bench.timers.reverse()
    assert bench.fire(DeadlineDue) == [ended(client("d"), "2")]
    assert bench.now_s == 3.0
    assert bench.core.report().failed_total == 0
    sent = bench.fire(DeadlineDue)
    assert sent[0] == ended(client("c"), "9")
    assert target(sent, Cancel) == [A]
    assert bench.core.report().failed_total == 1
    assert len(bench.core.journal) == 0


def test_a_retry_has_a_deadline_also_where_the_first_client_had_none() -> None:
    bench = running(None)
    bench.give(client("c"), Abort())
    bench.give(client("d"), named(timeout_s=2.0), 1.0)
    assert bench.fire(DeadlineDue)[0] == ended(client("d"), "2")
    assert len(bench.core.journal) == 0


def test_a_deadline_ends_a_request_without_readers() -> None:
    bench = running(2.0)
    bench.give(client("c"), Abort())
    assert only(bench.fire(DeadlineDue), Cancel).request == 1
    assert len(bench.core.journal) == 0


def test_without_a_limit_the_reason_names_none() -> None:
    bench = Bench()
    bench.give(client("c"), submit(max_tokens=None, timeout_s=2.0))
    assert only(bench.fire(DeadlineDue), Delta).detail == "2 s are over: 0 tokens were generated"
