"""The audit of the KV cache detects slots that hold another sequence's KV, across engine processes too."""

from dataclasses import replace

import pytest

from dunlin.messages.engine import StepDone
from dunlin.messages.types import i64
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import GARBAGE, TORN, KvCacheAudit
from simulator.engine.token_model import digest_of
from tests.simulator.engine.engine_bench import Bench, open_of, step_of, written


def test_a_slot_that_another_sequence_wrote_into_is_noticed() -> None:
    bench = Bench()
    bench.tell(open_of(1), open_of(2), step_of(1, (1, 0, 10)))
    bench.tell(replace(step_of(2, (2, 0, 10)), extent_start=i64([105])), step_of(3, (1, 10, 11)))
    with pytest.raises(ContractBroken, match="another's KV"):
        bench.run()


def test_a_crashed_engine_leaves_its_slab_but_for_what_it_was_writing() -> None:
    bench = written(restart_s=0.5)
    bench.tell(open_of(2), step_of(2, (2, 0, 10)), at_s=0.1)
    bench.world.run_to(1.15)
    bench.supervisor.crash()
    bench.world.run_to(2.0)
    kept = open_of(3, extent_start=i64([100]), extent_length=i64([9]))
    bench.tell(kept, step_of(3, (3, 9, 10)))
    assert [done.step for _, done in bench.of(StepDone)] == [1, 3]
    torn = open_of(4, extent_start=i64([200]), extent_length=i64([9]))
    bench.tell(torn, step_of(4, (4, 9, 10)))
    with pytest.raises(ContractBroken, match="another's KV"):
        bench.world.run_to(90.0)


def test_after_an_engine_went_wild_nothing_of_the_slab_may_be_read() -> None:
    bench = written(restart_s=0.5)
    bench.supervisor.crash(signal=11)
    bench.world.run_to(2.0)
    bench.tell(open_of(3, extent_start=i64([100]), extent_length=i64([9])), step_of(3, (3, 9, 10)))
    with pytest.raises(ContractBroken, match="another's KV"):
        bench.run()


def audited(*tenants: str) -> KvCacheAudit:
    """Sequence n, of tenant n, has the tokens 5, 6, 7; none is in a slot."""
    audit = KvCacheAudit(16, dict(enumerate(tenants, 1)).__getitem__)
    for number in range(1, len(tenants) + 1):
        audit.opened(number, [5, 6, 7], [])
    return audit


def test_a_slot_holds_the_digest_of_the_text_up_to_its_token() -> None:
    audit = audited("")
    audit.computed(1, 0, 2, [3, 9])
    audit.computed(1, 2, 3, [4])
    assert audit.slab.read([3, 9, 4, 0]) == [
        digest_of([5]),
        digest_of([5, 6]),
        digest_of([5, 6, 7]),
        None,
    ]
    audit.sampled(1, 8)
    audit.computed(1, 3, 4, [0])
    assert audit.slab.read([0]) == [digest_of([5, 6, 7, 8])]


def test_what_another_tenant_wrote_is_not_read_though_the_text_is_the_same() -> None:
    audit = audited("one", "one", "two")
    audit.computed(1, 0, 2, [0, 1])
    for number in (2, 3):
        audit.adopted(number, 0, [0, 1])
    audit.computed(2, 2, 3, [2])
    with pytest.raises(ContractBroken, match="sequence 3: tenant 'two' reads what 'one' wrote"):
        audit.computed(3, 2, 3, [3])


def test_a_copy_carries_the_content_and_no_tenant() -> None:
    audit = audited("one", "two")
    audit.computed(1, 0, 3, [8, 9, 10])
    audit.computed(1, 0, 3, [0, 1, 2])
    audit.copied_in([8, 9, 10], audit.copied_out([0, 1, 2]))
    audit.adopted(2, 0, [8, 9])
    audit.computed(2, 2, 3, [11])
    with pytest.raises(ContractBroken, match="1 slots are copied that no row wrote"):
        audit.copied_out([2, 12])


@pytest.mark.parametrize(("trusted", "left"), [(True, digest_of([5])), (False, GARBAGE)])
def test_an_engine_that_is_replaced_leaves_torn_slots_and_perhaps_no_other(trusted: bool, left: int) -> None:
    audit = audited("")
    audit.computed(1, 0, 2, [0, 1])
    audit.engine_replaced([1], trusted)
    assert audit.slab.read([0, 1]) == [left, TORN]
    with pytest.raises(KeyError):
        audit.sampled(1, 8)


@pytest.mark.parametrize("slots", [[16], [-1], [0, 16]])
def test_a_slot_outside_the_slab_is_a_breach(slots: list[int]) -> None:
    with pytest.raises(ContractBroken, match="in a slab of 16"):
        audited("").computed(1, 0, len(slots), slots)
