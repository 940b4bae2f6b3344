"""Batch sequences that got no further for long rise: when, how many, and what they may do then."""

from dataclasses import replace
from typing import Any

from dunlin.effects import Address
from dunlin.messages.dispatch import Cancel, Place, Risen
from dunlin.messages.engine import Open, Step
from dunlin.messages.types import GroupKind, GroupRole, RequestClass
from services.instance.config import InstanceStarvationConfig
from services.instance.group.leading.placement import JoinWaitOver
from services.instance.scheduling.sequence_rise import SequenceRise
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import (
    ENGINE,
    MANAGER,
    ME,
    D,
    Direct,
    done,
    figures,
    make_order,
    make_place,
    of,
    only,
    ready_core,
)

WAITING, RUNNING, DRAINING = SequenceState.WAITING, SequenceState.RUNNING, SequenceState.DRAINING
NEVER = 99
"""A request that was never placed: a word about it makes the core look around."""


def chat(request: int, tokens: int, max_tokens: int = 4) -> Place:
    return make_place(request, tokens=tokens, max_tokens=max_tokens, may_preempt=True)


def batch(request: int, tokens: int, max_tokens: int = 4, **fields: Any) -> Place:
    return make_place(request, tokens=tokens, max_tokens=max_tokens, request_class=RequestClass.BATCH, **fields)


def starving(slots: int = 64, wait_s: float = 8.0, share: float = 0.1, **settings: Any) -> Direct:
    """An instance with a running chat request, engine number 1, that leaves little room."""
    values: dict[str, Any] = {
        "preemption__victim_policy": "batch_first",
        "scheduler__allocate_ahead_tokens": 1,
        "scheduler__max_running": 10,
        "starvation__batch_wait_s": wait_s,
        "starvation__risen_share": share,
    }
    direct = ready_core({"slots": slots}, **values | settings)
    direct.give(D, chat(1, 40, max_tokens=20))
    return direct


def look(direct: Direct, now_s: float) -> list[Any]:
    return direct.give(D, Cancel(NEVER, 1), now_s)


def sequence_of(direct: Direct, request: int) -> Sequence:
    found = direct.core.sequences.by_key((D, request))
    assert found is not None
    return found


def risen(direct: Direct) -> list[int]:
    return [each.place.request for each in direct.core.sequences.by_arrival() if each.is_risen]


def test_one_that_waits_too_long_rises_goes_before_younger_chat_and_says_so() -> None:
    direct = starving()
    direct.give(D, batch(2, 30))
    direct.give(D, chat(3, 40), 7.0)
    look(direct, 7.9)
    assert risen(direct) == []
    told = only(Risen, look(direct, 8.0))
    assert (told.request, told.attempt, figures(told.why)["stalled_s"]) == (2, 1, 8.0)
    assert [each.place.request for each in direct.core.sequences.waiting()] == [2, 3]
    assert (direct.core.report().risen, direct.core.report().risen_total) == (1, 1)
    direct.give(D, Cancel(1, 1), 8.1)
    direct.give(ENGINE, done(1, (1, 5)), 8.2)
    direct.give(ENGINE, done(2, (1, 5)), 8.3)
    assert [sequence_of(direct, request).state for request in (2, 3)] == [RUNNING, WAITING]


def test_coming_back_to_where_it_was_is_no_progress() -> None:
    """Though nothing looked while it was there: it was preempted at once (restless seed 5603344)."""
    sequences = SequenceTable()
    sequence = sequences.add(D, batch(1, 10))
    rise = SequenceRise(sequences, InstanceStarvationConfig(batch_wait_s=8.0), 10, lambda: 64)
    sequence.valid = 6
    assert rise.raise_starved(0.0) == []
    sequence.valid, sequence.kv_tokens = 0, 9
    assert rise.raise_starved(1.0) == []
    sequence.valid = 9
    assert rise.raise_starved(8.0) == []
    assert only(Risen, rise.raise_starved(9.0)).request == 1


def test_nothing_rises_without_a_bound_and_no_chat_request_does() -> None:
    direct = starving(wait_s=0.0)
    direct.give(D, batch(2, 30))
    direct.give(D, chat(3, 30))
    look(direct, 1e6)
    assert risen(direct) == []


def test_the_share_of_the_running_is_kept_and_the_oldest_rise_first() -> None:
    direct = starving(slots=640, scheduler__max_running=20)
    direct.give(D, chat(99, 560, max_tokens=20))
    for request in range(2, 6):
        direct.give(D, batch(request, 28), request / 10)
    look(direct, 9.0)
    assert risen(direct) == [2, 3]
    look(direct, 30.0)
    assert risen(direct) == [2, 3]
    direct.give(D, Cancel(2, 1), 31.0)
    look(direct, 32.0)
    assert risen(direct) == [3, 4]


def test_long_sequences_rise_one_at_a_time_and_no_shorter_one_goes_before_them() -> None:
    direct = starving(slots=640, scheduler__max_running=40)
    direct.give(D, chat(99, 560, max_tokens=20))
    for request, tokens in ((2, 50), (3, 50), (4, 5)):
        direct.give(D, batch(request, tokens), request / 10)
    look(direct, 9.0)
    assert risen(direct) == [2]
    direct.give(D, Cancel(2, 1), 10.0)
    look(direct, 11.0)
    assert risen(direct) == [3, 4]


def test_what_makes_progress_does_not_rise_and_what_is_computed_again_is_none() -> None:
    direct = starving(slots=640)
    direct.give(D, batch(2, 30, max_tokens=60))
    direct.give(ENGINE, done(1, (1, 5)), 7.5)
    direct.give(ENGINE, done(2, (1, 5)), 7.5)
    direct.give(ENGINE, done(3, (1, 5), (2, 5)), 7.6)
    look(direct, 9.0)
    look(direct, 15.0)
    assert risen(direct) == []
    sequence_of(direct, 2).valid = 3  # as if it had been preempted, and begun again
    look(direct, 17.1)
    assert risen(direct) == [2]


def test_one_that_rose_at_its_dispatcher_rises_at_once_if_the_share_allows_it() -> None:
    direct = starving(wait_s=600.0)
    told = direct.give(D, batch(2, 30, rises_after_s=0.0), 1.0)
    assert only(Risen, told).request == 2
    assert of(Risen, direct.give(D, batch(3, 30, rises_after_s=0.0), 1.0)) == []
    direct.give(D, Cancel(2, 1), 1.5)
    assert only(Risen, look(direct, 2.1)).request == 3


def test_one_rises_when_its_completion_window_is_about_to_end() -> None:
    direct = starving(wait_s=0.0)
    direct.give(D, batch(2, 30, rises_after_s=5.0), 1.0)
    look(direct, 5.9)
    assert risen(direct) == []
    assert "out of time" in only(Risen, look(direct, 7.0)).why.rejected[0].reason


def running_batch(**settings: Any) -> Direct:
    """Chat and two batch sequences that run; the older of these has risen."""
    direct = ready_core({"slots": 64}, **{"preemption__victim_policy": "batch_first", **settings})
    direct.give(D, batch(1, 20, 10, rises_after_s=0.0))
    direct.give(D, batch(2, 20, 10))
    direct.give(ENGINE, done(1, (1, 5)))
    assert risen(direct) == [1]
    return direct


def test_one_that_rose_is_no_victim_of_chat_and_other_batch_work_is() -> None:
    direct = running_batch(scheduler__allocate_ahead_tokens=1)
    direct.give(D, chat(3, 50))
    direct.give(ENGINE, done(2, (1, 5)))
    assert [sequence_of(direct, request).state for request in (1, 2)] == [RUNNING, DRAINING]
    report = direct.core.report()
    assert (report.risen, report.preemptible_running) == (1, 0)


def test_one_that_rose_preempts_nothing_but_for_chat_behind_it() -> None:
    """Batch work alone is only in line. Chat would have preempted it for itself, and must not stand still."""
    direct = running_batch(scheduler__allocate_ahead_tokens=1, starvation__risen_share=1.0)
    direct.give(D, batch(3, 30, rises_after_s=0.0))
    direct.give(ENGINE, done(2, (1, 5)))
    assert risen(direct) == [1, 3]
    assert [sequence_of(direct, request).state for request in (1, 2, 3)] == [RUNNING, RUNNING, WAITING]
    direct.give(D, chat(4, 10))
    direct.give(ENGINE, done(3, (1, 5), (2, 5)))
    assert [sequence_of(direct, request).state for request in (1, 2, 3)] == [RUNNING, DRAINING, WAITING]


def test_a_sequence_that_rose_takes_slots_from_other_batch_work_when_it_grows() -> None:
    """Were both alike, the younger would be the victim."""
    direct = ready_core({"slots": 48}, preemption__victim_policy="batch_first", scheduler__allocate_ahead_tokens=1)
    direct.give(D, batch(1, 20, 20))
    direct.give(D, batch(2, 20, 20, rises_after_s=0.0))
    assert risen(direct) == [2]
    direct.give(ENGINE, done(1, (1, 5)))
    for step in range(2, 9):
        direct.give(ENGINE, done(step, (1, 5), (2, 5)))
    assert sequence_of(direct, 1).state is not RUNNING
    assert sequence_of(direct, 2).state is RUNNING


def test_policies_see_what_rose() -> None:
    seen: list[bool] = []

    def policy(candidates: Any, budget: Any) -> list[int]:
        seen.extend(each.is_risen for each in candidates)
        return [each.remaining_tokens for each in candidates]

    direct = starving(slots=640)
    direct.core._composer._policy = policy
    direct.give(D, batch(2, 30, rises_after_s=0.0))
    direct.give(ENGINE, done(1, (1, 5)))
    assert set(seen) == {False, True}


def test_the_policy_of_interrupts_sees_what_rose() -> None:
    seen: list[bool] = []

    def policy(candidates: Any, situation: Any) -> None:
        seen.extend(each.is_risen for each in candidates)

    direct = starving(slots=640)
    direct.core._scheduler._interrupts._policy = policy
    direct.give(D, batch(2, 30, rises_after_s=0.0))
    direct.give(ENGINE, done(1, (1, 5)))
    direct.give(ENGINE, done(2, (1, 5)))
    assert set(seen) == {False, True}


def test_one_that_leaves_for_another_instance_does_not_rise() -> None:
    direct = starving(slots=640)
    direct.give(D, batch(2, 30, max_tokens=60))
    direct.core.sequences.transition(sequence_of(direct, 2), SequenceState.LEAVING)
    look(direct, 9.0)
    assert risen(direct) == []


def test_a_rise_ends_the_fast_path_so_that_the_next_step_is_composed_with_it() -> None:
    direct = starving(slots=640)
    direct.give(D, batch(2, 30, max_tokens=60))
    before = direct.core.sequences.running
    look(direct, 8.0)
    assert risen(direct) == [2]
    assert direct.core.sequences.running is not before
    assert of(Step, direct.give(ENGINE, done(1, (1, 5)), 8.1))


def test_one_that_rises_goes_before_younger_chat_in_its_group_from_the_same_event_on() -> None:
    """The slots are there only when the members that have not joined are waited for no longer."""
    group, other = 3, Address("instance", "other", 9)
    direct = ready_core({"slots": 64}, starvation__batch_wait_s=8.0)
    order = {"kind": GroupKind.ELASTIC, "part": GroupRole.LEADER, "group": group, "members": (ME, other)}
    direct.give(MANAGER, make_order(plan_version=2, **order))
    direct.give(D, replace(batch(1, 40), group=group))
    direct.give(D, replace(chat(2, 40), group=group), 7.5)
    assert risen(direct) == []
    opened = of(Open, direct.give(ME, JoinWaitOver(1), 9.0))
    assert risen(direct) == [1]
    assert [message.tokens for message in opened] == [batch(1, 40).tokens]
