"""Which sequences get slots when: what a new one may not take from the running ones."""

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.types import SamplingParams, i32
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.interrupt import never
from dunlin.policies.victim import VICTIM_POLICIES
from services.instance.config import SchedulerConfig
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.kv_cache import KvCache
from services.instance.scheduling.interrupts import RowInterrupts
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.scheduler import Scheduler
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.steps import StepComposer
from services.instance.sequence.table import SequenceState, SequenceTable

ENGINE = Address("engine", "i")
DISPATCHER = Address("dispatcher", "d", 1)


def place(request: int, tokens: int, max_tokens: int) -> Place:
    return Place(request, 1, i32(range(tokens)), tokens, max_tokens, SamplingParams())


def test_one_that_arrived_with_more_slots_than_it_needs_makes_no_room_for_others() -> None:
    sequences, host_cache = SequenceTable(), HostCacheClient(ENGINE, 3.0)
    steps = StepLedger(ENGINE, sequences)
    lifecycle = SequenceLifecycle(ENGINE, sequences, host_cache, steps)
    lifecycle.kv_cache = KvCache(96)
    composer = StepComposer(BATCH_POLICIES["chunked"], "chunked", 512, steps)
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
