"""Which sequences get slots when: what a new one may not take from the running ones."""

from collections.abc import Sequence
from typing import Any

import pytest

from dunlin.effects import Address, Gone
from dunlin.messages.dispatch import Cancel, Place
from dunlin.messages.engine import EngineExited, Step
from dunlin.messages.types import RequestClass, SamplingParams, i32
from dunlin.policies.interrupt import never
from dunlin.policies.overtake import OVERTAKE_POLICIES
from dunlin.policies.step_budget import BatchCandidate, StepBudget
from dunlin.policies.victim import VICTIM_POLICIES, SlotNeed, VictimCandidate, VictimChoice, youngest
from services.instance.config import ObjectivesConfig, SchedulerConfig
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.kv_cache import KvCache
from services.instance.objectives.effective import EffectiveObjectives
from services.instance.objectives.miss_allowance import MissAllowance
from services.instance.scheduling.interrupts import RowInterrupts
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.overtakers import Overtakers
from services.instance.scheduling.scheduler import Scheduler
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.steps import BatchComposer
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, D, Direct, done, make_place, of, ready_core

DISPATCHER = Address("dispatcher", "d", 1)


def place(request: int, tokens: int, max_tokens: int) -> Place:
    return Place(request, 1, i32(range(tokens)), tokens, max_tokens, SamplingParams())


def test_one_that_arrived_with_more_slots_than_it_needs_makes_no_room_for_others() -> None:
    sequences, host_cache = SequenceTable(), HostCacheClient(ENGINE, 3.0)
    steps = StepLedger(ENGINE, sequences)
    lifecycle = SequenceLifecycle(ENGINE, sequences, host_cache, steps)
    lifecycle.kv_cache = KvCache(96)
    objectives = EffectiveObjectives(ObjectivesConfig())
    composer = BatchComposer(SchedulerConfig(), steps, objectives, MissAllowance(1))
    interrupts = RowInterrupts(never, sequences, steps, objectives)
    config = SchedulerConfig(allocate_ahead_tokens=4)
    overtakers = Overtakers(OVERTAKE_POLICIES["never"], sequences, lifecycle)
    policies = (interrupts, VICTIM_POLICIES["youngest"], overtakers, list)
    scheduler = Scheduler(
        ENGINE, config, sequences, lifecycle, steps, composer, *policies, lambda: sequences.taken_rows
    )
    arrived = sequences.add(DISPATCHER, place(1, 20, 5))
    assert lifecycle.kv_cache.reserve("arrival", 52)
    lifecycle.start_migrated(arrived, "arrival", 19)
    preempted = sequences.add(DISPATCHER, place(2, 45, 30))
    preempted.preempted = True
    scheduler.schedule(0.0)
    assert preempted.state is SequenceState.WAITING
    assert lifecycle.slot_table.free == 44


def test_policies_see_the_class_and_what_may_be_preempted_for_a_request() -> None:
    seen: list[object] = []

    def batch(candidates: Sequence[BatchCandidate], budget: StepBudget) -> list[int]:
        seen.extend(candidates)
        return [each.remaining_tokens for each in candidates]

    def victim(candidates: Sequence[VictimCandidate], need: SlotNeed) -> VictimChoice | None:
        seen.extend(candidates)
        return youngest(candidates, need)

    direct = ready_core(kv_cache__max_slots=32, scheduler__allocate_ahead_tokens=1)
    direct.core._composer._policy = batch
    direct.core._scheduler._victim_policy = victim
    direct.give(D, make_place(1, tokens=12, request_class=RequestClass.BATCH))
    direct.give(D, make_place(2, tokens=12, may_preempt=True))
    for step in range(1, 8):
        direct.give(ENGINE, done(step, (1, 5), (2, 5)))
    importance = {(each.request_class, each.may_preempt) for each in seen if isinstance(each, BatchCandidate)}
    assert importance == {(RequestClass.BATCH, False), (RequestClass.INTERACTIVE, True)}
    decodes = [each for each in seen if isinstance(each, BatchCandidate) and each.is_decode]
    assert {each.request_class for each in decodes} == {RequestClass.BATCH, RequestClass.INTERACTIVE}
    victims = [each for each in seen if isinstance(each, VictimCandidate)]
    assert [(each.request_class, each.may_preempt, each.is_parked) for each in victims[:2]] == [
        (RequestClass.BATCH, False, False),
        (RequestClass.INTERACTIVE, True, False),
    ]


def states(direct: Direct) -> list[SequenceState]:
    return [sequence.state for sequence in direct.core.sequences.by_arrival()]


def test_one_that_does_not_fit_is_not_overtaken_by_one_that_would() -> None:
    direct = ready_core({"slots": 64})
    direct.give(D, make_place(1, tokens=30, max_tokens=2))
    direct.give(D, make_place(2, tokens=40, max_tokens=20))
    direct.give(D, make_place(3, tokens=3, max_tokens=2))
    direct.give(ENGINE, done(1, (1, 5)))
    assert states(direct) == [SequenceState.RUNNING, SequenceState.WAITING, SequenceState.WAITING]


def test_where_slots_ahead_are_too_many_a_sequence_gets_those_that_its_row_needs() -> None:
    direct = ready_core({"slots": 33}, scheduler__allocate_ahead_tokens=2)
    for request in (1, 2):
        direct.give(D, make_place(request, tokens=12, max_tokens=8))
    step = 0
    while direct.core.slot_table.free > 0 and step < 9:
        step += 1
        direct.give(ENGINE, done(step, (1, 5), (2, 5)))
        assert states(direct) == [SequenceState.RUNNING] * 2, "none was preempted while a slot was free"
    assert direct.core.slot_table.free == 0


def interactive(request: int, tokens: int, max_tokens: int = 4) -> Place:
    return make_place(request, tokens=tokens, max_tokens=max_tokens, may_preempt=True)


def batch(request: int, tokens: int, max_tokens: int = 4) -> Place:
    return make_place(request, tokens=tokens, max_tokens=max_tokens, request_class=RequestClass.BATCH)


def two_batch_sequences(**settings: Any) -> Direct:
    """Two of the batch class run, each with a row in step 3; step 2 is outstanding too."""
    direct = ready_core({"slots": 64}, **{"scheduler__allocate_ahead_tokens": 1} | settings)
    direct.give(D, batch(1, 20))
    direct.give(D, batch(2, 20))
    direct.give(ENGINE, done(1, (1, 5)))
    assert states(direct) == [SequenceState.RUNNING, SequenceState.RUNNING]
    return direct


def test_batch_work_gives_its_slots_to_an_interactive_request_that_waits() -> None:
    direct = two_batch_sequences(preemption__victim_policy="batch_first")
    direct.give(D, interactive(3, 30))
    direct.give(ENGINE, done(2, (1, 5)))
    assert states(direct) == [SequenceState.RUNNING, SequenceState.DRAINING, SequenceState.WAITING]
    direct.give(ENGINE, done(3, (1, 5), (2, 5)))
    assert states(direct) == [SequenceState.RUNNING, SequenceState.WAITING, SequenceState.RUNNING]


def test_batch_work_is_preempted_on_arrival_and_not_when_the_next_step_is_composed() -> None:
    direct = two_batch_sequences(preemption__victim_policy="batch_first")
    assert direct.core.steps.outstanding == 2
    direct.give(D, interactive(3, 30))
    assert states(direct) == [SequenceState.RUNNING, SequenceState.DRAINING, SequenceState.WAITING]
    direct.give(D, batch(4, 30))  # the scheduler is asked again
    assert states(direct)[:2] == [SequenceState.RUNNING, SequenceState.DRAINING]


def test_without_a_policy_for_it_an_interactive_request_waits_for_batch_work() -> None:
    direct = two_batch_sequences()
    direct.give(D, interactive(3, 30))
    direct.give(ENGINE, done(2, (1, 5)))
    direct.give(ENGINE, done(3, (1, 5), (2, 5)))
    assert states(direct) == [SequenceState.RUNNING, SequenceState.RUNNING, SequenceState.WAITING]


def test_a_place_in_the_batch_is_given_up_too() -> None:
    direct = two_batch_sequences(preemption__victim_policy="batch_first", scheduler__max_running=2)
    direct.give(D, interactive(3, 5))
    direct.give(ENGINE, done(2, (1, 5)))
    assert states(direct) == [SequenceState.RUNNING, SequenceState.DRAINING, SequenceState.RUNNING]


def test_a_row_is_given_up_although_slots_of_another_victim_are_on_their_way() -> None:
    direct = two_batch_sequences(preemption__victim_policy="batch_first", scheduler__max_running=2)
    direct.give(D, interactive(3, 5))
    direct.give(D, interactive(4, 5))
    assert states(direct)[:2] == [SequenceState.RUNNING, SequenceState.DRAINING]
    direct.give(ENGINE, done(2, (1, 5)))
    assert states(direct) == 2 * [SequenceState.DRAINING] + 2 * [SequenceState.RUNNING]


@pytest.mark.parametrize("interactive_requests", [1, 2])
def test_an_engine_that_dies_while_rows_are_given_up_gives_none_back_that_others_have(
    interactive_requests: int,
) -> None:
    direct = two_batch_sequences(preemption__victim_policy="batch_first", scheduler__max_running=2)
    for request in range(3, 3 + interactive_requests):
        direct.give(D, interactive(request, 5))
    direct.give(ENGINE, done(2, (1, 5)))
    assert states(direct).count(SequenceState.DRAINING) == interactive_requests
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=9))
    direct.give(ENGINE, Gone("killed"))
    running, waiting = [SequenceState.RUNNING], [SequenceState.WAITING]
    batch_states = running + waiting if interactive_requests == 1 else 2 * waiting
    assert states(direct) == batch_states + interactive_requests * running
    assert {len(step.sequence) for step in of(Step, direct.give(ENGINE, make_engine_ready(slots=64)))} == {2}


def test_no_more_batch_work_is_preempted_than_makes_room() -> None:
    direct = two_batch_sequences(preemption__victim_policy="batch_first")
    direct.give(D, interactive(3, 30))
    direct.give(ENGINE, done(2, (1, 5)))
    direct.give(D, interactive(4, 5))  # the scheduler is asked again while the slots for the first are on their way
    assert states(direct)[:2] == [SequenceState.RUNNING, SequenceState.DRAINING]


@pytest.mark.parametrize(("mode", "starts"), [("spill", True), ("swap", False)])
def test_steps_start_while_kv_is_spilled_but_not_while_it_is_swapped(mode: str, starts: bool) -> None:
    direct = two_batch_sequences(preemption__mode=mode)
    _, moving = direct.core.sequences.by_arrival()
    for state in (SequenceState.DRAINING, SequenceState.ASKING, SequenceState.SPILLING):
        direct.core.sequences.transition(moving, state)
    assert bool(of(Step, direct.give(ENGINE, done(2, (1, 5))))) is starts


def test_interactive_requests_overtake_batch_requests_in_the_queue() -> None:
    direct = ready_core({"slots": 640}, scheduler__max_running=1)
    direct.give(D, batch(1, 20))
    direct.give(D, batch(2, 20))
    direct.give(D, interactive(3, 30))
    assert [each.place.request for each in direct.core.sequences.waiting()] == [3, 2]


def test_while_the_first_in_the_queue_does_not_fit_decode_steps_follow_without_a_look_at_the_queue() -> None:
    direct = ready_core({"slots": 256})
    for request in (1, 2):
        direct.give(D, batch(request, 20, max_tokens=40))
    direct.give(D, batch(3, 180))
    for step, numbers in enumerate([(1,), (1,), (1, 2), (1, 2), (1, 2)], 1):
        direct.give(ENGINE, done(step, *((number, 5) for number in numbers)))
    looked: list[object] = []
    waiting = direct.core.sequences.waiting
    direct.core.sequences.waiting = lambda: looked.append(1) or waiting()  # type: ignore[func-returns-value, method-assign]
    for step in (6, 7, 8):
        assert len(of(Step, direct.give(ENGINE, done(step, (1, 5), (2, 5))))) == 1
    assert not looked
    direct.give(D, Cancel(1, 1))
    direct.give(ENGINE, done(9, (1, 5), (2, 5)))
    assert looked, "there are slots again"
