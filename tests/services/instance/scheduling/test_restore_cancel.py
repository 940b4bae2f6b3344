"""A batch sequence that is being restored gives its slots to interactive work at once, and what is kept stays kept."""

from typing import Any

import pytest

from dunlin.messages.dispatch import Accepted, Continued, Preempted
from dunlin.messages.engine import CancelTransfer, Open
from dunlin.messages.types import RequestClass
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import Attempt, Bench

MOVE_S = 2.0
"""Seconds that a copy to or from the host tier takes, far longer than anything else here."""


SETTINGS: dict[str, Any] = {"preset": "unified", "scheduler__allocate_ahead_tokens": 4}


def restoring(**settings: Any) -> tuple[Bench, Attempt, Sequence]:
    """An instance whose one batch sequence was preempted for an interactive one and is being restored.

    It makes no checkpoints: nothing else is copied.
    """
    engine = {"slots": 128, "move_s": MOVE_S, "move_busy_s": 0.0}
    bench = Bench(tier_bytes=1 << 20, engine=engine, checkpoint__engine_share=0.0, **SETTINGS, **settings)
    attempt = bench.place(1, tokens=70, max_tokens=20, request_class=RequestClass.BATCH)
    bench.run(0.05)
    chat = bench.place(2, tokens=70, max_tokens=4, may_preempt=True)
    bench.run(MOVE_S + 0.5)
    assert len(chat.tokens) == 4
    bench.run(0.5)
    (sequence,) = bench.core.sequences
    assert sequence.state is SequenceState.RESTORING
    return bench, attempt, sequence


def test_an_interactive_request_starts_at_once_and_the_batch_sequence_comes_back() -> None:
    bench, attempt, sequence = restoring()
    kept = list(sequence.kept)
    arrived_s = bench.world.now_s
    chat = bench.place(3, tokens=70, max_tokens=4, may_preempt=True)
    bench.run(0.2)
    assert len(chat.tokens) == 4
    assert bench.dispatcher.times(Accepted)[-1] - arrived_s < MOVE_S / 10
    assert sequence.kept == kept
    assert bench.dispatcher.of(Continued) == []
    bench.run_until_quiet()
    bench.check_empty()
    assert attempt.tokens == attempt.expected
    (continued,) = bench.dispatcher.of(Continued)
    assert continued.restored_tokens == kept[-1].region.stop


def test_the_place_in_the_batch_that_it_would_take_is_given_up_too() -> None:
    bench, attempt, _ = restoring(scheduler__max_running=1)
    chat = bench.place(3, tokens=20, max_tokens=4, may_preempt=True)
    bench.run(0.2)
    assert len(chat.tokens) == 4
    bench.run_until_quiet()
    bench.check_empty()
    assert attempt.tokens == attempt.expected
    assert max(len(step.sequence) for step in bench.engine.steps) == 1


def test_the_dispatcher_is_told_why() -> None:
    bench, _, _ = restoring()
    bench.place(3, tokens=70, max_tokens=4, may_preempt=True)
    bench.run(0.2)
    assert [message.request for message in bench.dispatcher.of(Preempted)] == [1, 1]
    why = bench.dispatcher.of(Preempted)[1].why
    assert why is not None
    assert (why.policy, why.chosen.partition(" (")[2]) == ("cancel the restore", "request 1 of d)")
    assert len(bench.sent(CancelTransfer)) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"tokens": 20, "may_preempt": True},
        {"tokens": 70, "request_class": RequestClass.BATCH},
        {"tokens": 70, "may_preempt": True, "rises": True},
    ],
    ids=["it fits beside it", "it is batch work too", "the one restored has risen"],
)
def test_a_restore_goes_on_where_nothing_interactive_needs_its_slots(wanted: dict[str, Any]) -> None:
    bench, attempt, sequence = restoring()
    wanted = dict(wanted)
    if wanted.pop("rises", False):
        bench.core.sequences.rise(sequence)
    bench.place(3, max_tokens=4, **wanted)
    bench.run_until_quiet()
    assert bench.sent(CancelTransfer) == []
    assert attempt.tokens == attempt.expected
    bench.check_empty()


@pytest.mark.parametrize(("tokens", "preempted"), [(70, []), (115, [3])], ids=["enough", "not enough"])
def test_no_batch_work_is_preempted_where_the_cancelled_restore_frees_enough(tokens: int, preempted: list[int]) -> None:
    bench, _, _ = restoring()
    bench.place(3, tokens=10, max_tokens=90, request_class=RequestClass.BATCH)
    bench.run(0.2)
    assert bench.core.sequences.running_count == 1
    before = len(bench.dispatcher.of(Preempted))
    chat = bench.place(4, tokens=tokens, max_tokens=4, may_preempt=True)
    bench.run(0.01)
    assert [message.request for message in bench.dispatcher.of(Preempted)[before:]] == [1, *preempted]
    bench.run_until_quiet()
    assert chat.tokens == chat.expected
    bench.check_empty()


def test_one_that_ends_while_its_restore_is_cancelled_leaves_nothing_behind() -> None:
    bench, attempt, _ = restoring()
    bench.place(3, tokens=70, max_tokens=4, may_preempt=True)
    bench.cancel(attempt)
    bench.run_until_quiet()
    bench.check_empty()


def test_an_engine_that_dies_in_between_is_started_again_and_all_is_answered() -> None:
    bench, attempt, _ = restoring()
    chat = bench.place(3, tokens=70, max_tokens=4, may_preempt=True)
    bench.run(0.0015)  # the cancellation is under way
    bench.seat.crash()
    bench.run_until_quiet()
    assert (attempt.tokens, chat.tokens) == (attempt.expected, chat.expected)
    assert bench.sent(Open)
    bench.check_empty()
