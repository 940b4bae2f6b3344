"""Which sequences get slots when: what a new one may not take from the running ones."""

from collections.abc import Sequence

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.types import RequestClass, SamplingParams, i32
from dunlin.policies.batch import BATCH_POLICIES, BatchCandidate
from dunlin.policies.interrupt import never
from dunlin.policies.victim import VICTIM_POLICIES, VictimCandidate, VictimChoice, youngest
from services.instance.config import SchedulerConfig
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.kv_cache import KvCache
from services.instance.scheduling.interrupts import RowInterrupts
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.scheduler import Scheduler
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.steps import BatchComposer
from services.instance.sequence.table import SequenceState, SequenceTable
from tests.services.instance.bench import ENGINE, D, Direct, done, make_place, ready_core

DISPATCHER = Address("dispatcher", "d", 1)


def place(request: int, tokens: int, max_tokens: int) -> Place:
    return Place(request, 1, i32(range(tokens)), tokens, max_tokens, SamplingParams())


def test_one_that_arrived_with_more_slots_than_it_needs_makes_no_room_for_others() -> None:
    sequences, host_cache = SequenceTable(), HostCacheClient(ENGINE, 3.0)
    steps = StepLedger(ENGINE, sequences)
    lifecycle = SequenceLifecycle(ENGINE, sequences, host_cache, steps)
    lifecycle.kv_cache = KvCache(96)
    composer = BatchComposer(BATCH_POLICIES["chunked"], "chunked", 512, steps)
    interrupts = RowInterrupts(never, sequences, steps)
    config = SchedulerConfig(allocate_ahead_tokens=4)
    scheduler = Scheduler(
        ENGINE, config, sequences, lifecycle, steps, composer, interrupts, VICTIM_POLICIES["youngest"], list
    )
    arrived = sequences.add(DISPATCHER, place(1, 20, 5))
    assert lifecycle.kv_cache.reserve("arrival", 52)
    lifecycle.start_migrated(arrived, "arrival", 19)
    preempted = sequences.add(DISPATCHER, place(2, 45, 30))
    preempted.preempted = True
    scheduler.schedule()
    assert preempted.state is SequenceState.WAITING
    assert lifecycle.slot_table.free == 44


def test_policies_see_the_class_and_what_may_be_preempted_for_a_request() -> None:
    seen: list[object] = []

    def batch(candidates: Sequence[BatchCandidate], budget_tokens: int) -> list[int]:
        seen.extend(candidates)
        return [each.remaining_tokens for each in candidates]

    def victim(candidates: Sequence[VictimCandidate]) -> VictimChoice:
        seen.extend(candidates)
        return youngest(candidates)

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
