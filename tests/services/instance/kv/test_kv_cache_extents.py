"""The KV cache: the slots that positions lie in, who has some of those that are about to go, and what contradicts."""

import pytest

from services.instance.kv.kv_cache import KvCache
from services.instance.kv.prefix_cache import PrefixBlock
from services.instance.kv.residency import SlotUse
from services.instance.sequence.sequence import NO_SLOT_RUN, Sequence
from tests.services.instance.kv.test_kv_cache import TEXT, begin, computed, make_sequence


def shared_by_two(capacity: int = 128) -> tuple[KvCache, Sequence, Sequence]:
    """The second shares the first two blocks with the first, and has 16 slots of its own."""
    cache = KvCache(capacity, "w")
    first, second = make_sequence(1), make_sequence(2)
    begin(cache, first)
    computed(cache, first)
    assert begin(cache, second) == 32
    return cache, first, second


def test_any_part_of_shared_blocks_can_be_read() -> None:
    cache, _, second = shared_by_two()
    spans = ((10, 20), (3, 9), (15, 17), (0, 32), (31, 33))
    assert [cache.extents(second, *span) for span in spans] == [
        [(10, 10)],
        [(3, 6)],
        [(15, 2)],
        [(0, 32)],
        [(31, 1), (48, 1)],
    ]


def test_shared_blocks_are_read_before_there_are_slots_of_its_own() -> None:
    cache, _, _ = shared_by_two()
    third = make_sequence(3)
    assert cache.attach_prefix(third) == 32
    assert cache.extents(third, 0, 32) == [(0, 32)]
    assert cache.extents(third, 4, 12) == [(4, 8)]
    with pytest.raises(KeyError):
        cache.extents(third, 31, 33)


def test_the_run_of_the_last_own_slots_that_were_looked_up_is_kept() -> None:
    cache = KvCache(64, "w")
    other, sequence = make_sequence(1), make_sequence(2)
    assert cache.allocate(sequence, 16)
    assert cache.allocate(other, 16)
    assert cache.allocate(sequence, 20)
    assert cache.extents(sequence, 0, 17) == [(0, 16), (32, 1)]
    assert sequence.slot_run == (16, 36, 32)
    assert cache.extents(sequence, 15, 16) == [(15, 1)]
    assert sequence.slot_run == (0, 16, 0)


def test_no_positions_lie_in_no_slots_and_are_no_look_up() -> None:
    cache = KvCache(64, "w")
    other, sequence = make_sequence(1), make_sequence(2)
    assert cache.allocate(sequence, 16)
    assert cache.allocate(other, 16)
    assert cache.allocate(sequence, 20)
    cache.extents(sequence, 0, 8)
    assert cache.extents(sequence, 4, 4) == []
    assert cache.extents(sequence, 30, 30) == []
    assert sequence.slot_run == (0, 16, 0)


def test_a_sequence_that_starts_again_reads_none_of_its_former_slots() -> None:
    cache = KvCache(128)
    sequence = make_sequence(1)
    begin(cache, sequence)
    assert cache.extents(sequence, 0, 48) == [(0, 48)]
    cache.release(sequence)
    assert sequence.slot_run == NO_SLOT_RUN
    assert cache.allocate(make_sequence(2), 40)
    assert cache.allocate(sequence, 48)
    assert cache.extents(sequence, 0, 48) == [(40, 48)]


def test_what_was_reserved_is_the_sequences_own_once_it_is_adopted() -> None:
    cache = KvCache(64, "w")
    sequence = make_sequence(1)
    assert cache.reserve("migration", 48)
    cache.adopt_reserved(sequence, "migration")
    assert (cache.slot_table.held("migration"), cache.slot_table.use(1)) == (0, SlotUse.OWNED)
    assert cache.extents(sequence, 0, 48) == [(0, 48)]
    with pytest.raises(KeyError):
        cache.adopt_reserved(make_sequence(2), "migration")


# --- slots that are about to go ---


def test_sequences_that_share_slots_which_go_are_named_as_those_that_own_some() -> None:
    """The two share slots 0 to 31 and own 32 to 47 and 48 to 63; the third has 64 to 79."""
    cache, _, _ = shared_by_two()
    assert cache.allocate(make_sequence(3), 16)
    assert cache.reserve("reserved", 16)
    assert [cache.sequences_beyond(limit) for limit in (0, 31, 32, 48, 63, 64, 79, 80)] == [
        [1, 2, 3],
        [1, 2, 3],
        [1, 2, 3],
        [2, 3],
        [2, 3],
        [3],
        [3],
        [],
    ]


def test_a_sequence_is_named_for_shared_slots_alone() -> None:
    """Slots 0 to 7 are free again, and the third has them and more: it shares blocks in slots 8 to 39."""
    cache = KvCache(64, "w")
    first, second = make_sequence(1), make_sequence(2)
    assert cache.allocate(second, 8)
    begin(cache, first, 40)
    computed(cache, first)
    third = make_sequence(3)
    cache.release(second)
    assert begin(cache, third, 40) == 32
    assert cache.extents(third, 32, 40) == [(0, 8)]
    cache.release(first)
    assert [cache.sequences_beyond(limit) for limit in (8, 30, 39, 40)] == [[3], [3], [3], []]


def test_unused_prefixes_in_slots_that_go_are_evicted_and_others_stay() -> None:
    """The prefix in slots 0 to 31 is newer than the one in 32 to 63, and a sequence has slots 64 to 79."""
    cache = KvCache(96, "w")
    newer, older, running = make_sequence(1), make_sequence(2, [2] * 40), make_sequence(3, [3] * 9)
    begin(cache, newer, 32)
    begin(cache, older, 32)
    assert cache.allocate(running, 16)
    for ended in (older, newer):
        ended.valid = 32
        cache.release_to_prefix_cache(ended)
    cache.withhold_beyond(32)
    assert [cache.reusable_tokens(make_sequence(9, known)) for known in (TEXT, older.tokens)] == [32, 0]
    assert (cache.available_slots, cache.slot_table.withheld, cache.slot_table.held(3)) == (32, 48, 16)
    cache.check_integrity()


def test_prefixes_in_use_stay_in_slots_that_go() -> None:
    cache, first, second = shared_by_two()
    cache.withhold_beyond(16)
    assert (cache.shared_positions(first), cache.shared_positions(second)) == (32, 32)
    assert cache.available_slots == 0
    cache.check_integrity()


# --- contradictions ---


def test_a_tree_that_contradicts_itself_is_an_error() -> None:
    cache, _, _ = shared_by_two()
    cache.check_integrity()
    cache.prefix_cache.unpinned += 1
    with pytest.raises(AssertionError, match="1 counted unpinned, 0 are"):
        cache.check_integrity()


def test_a_block_that_two_use_and_one_has_pinned_is_an_error() -> None:
    cache, _, _ = shared_by_two()
    blocks = [owner for owner in cache.slot_table.owners_beyond(0) if isinstance(owner, PrefixBlock)]
    assert [block.pins for block in blocks] == [2, 2]
    cache.prefix_cache.unpin(blocks)
    with pytest.raises(AssertionError, match="a block is used by more than have pinned it"):
        cache.check_integrity()
