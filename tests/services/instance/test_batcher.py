"""Who is given slots when: what a newcomer may not take from those that run."""

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.types import Sampling, i32
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.evict import EVICT_POLICIES
from services.instance.batcher import Batcher
from services.instance.config import SchedulerConfig
from services.instance.lives import Lives
from services.instance.sequences import Sequences, State
from services.instance.slab import Slab
from services.instance.steps import Steps
from services.instance.tier import HostTier

ENGINE = Address("engine", "i")
DISPATCHER = Address("dispatcher", "d", 1)


def place(request: int, tokens: int, max_tokens: int) -> Place:
    return Place(request, 1, i32(range(tokens)), tokens, max_tokens, Sampling())


def test_one_that_arrived_with_more_slots_than_it_needs_makes_no_room_for_others() -> None:
    sequences, tier = Sequences(), HostTier(ENGINE, 3.0)
    lives = Lives(ENGINE, sequences, tier)
    lives.slab = Slab(96)
    steps = Steps(BATCH_POLICIES["chunked"], "chunked", 512)
    config = SchedulerConfig(allocate_ahead_tokens=4)
    batcher = Batcher(ENGINE, config, sequences, lives, steps, EVICT_POLICIES["youngest"], list)
    arrived = sequences.add(DISPATCHER, place(1, 20, 5))
    assert lives.slab.reserve("arrival", 52)
    lives.arrive(arrived, "arrival", 19)
    preempted = sequences.add(DISPATCHER, place(2, 45, 30))
    preempted.preempted = True
    batcher.settle()
    assert preempted.state is State.WAITING
    assert lives.slots.free == 44
