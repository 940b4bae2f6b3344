"""The KV cache: shared prefixes, allocation, eviction; and that no tenant reads what another wrote."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.kv import tenant_isolation
from benchmarks.kv.tenant_isolation import ForeignRead, IsolationModel
from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.types import HostRegion, Region, i32
from dunlin.model.families import FAMILIES
from dunlin.model.rope_config import RopeConfig
from services.instance.kv import kv_cache
from services.instance.kv.kv_cache import KvCache
from services.instance.kv.prefix_cache import PrefixCache
from services.instance.kv.residency import Extent, SlotUse
from services.instance.sequence.sequence import KeptHostRegion, Sequence

D = Address("dispatcher", "d", 1)
TEXT = list(range(40))


def make_sequence(number: int, known: list[int] | None = None, **overrides: Any) -> Sequence:
    tokens = TEXT if known is None else known
    return Sequence(number, number, D, Place(number, 1, i32(tokens), len(tokens), 8, **overrides))


def begin(cache: KvCache, sequence: Sequence, slots: int = 48) -> int:
    """Start it with so many slots in all; how many tokens it reuses."""
    reused = cache.attach_prefix(sequence)
    assert cache.allocate(sequence, slots - reused)
    sequence.issued = sequence.valid = reused
    return reused


def computed(cache: KvCache, sequence: Sequence) -> Sequence:
    """All that it knows has KV now."""
    sequence.issued = sequence.valid = len(sequence.tokens)
    cache.share_prefix(sequence, sequence.valid)
    cache.check_integrity()
    return sequence


def kept(*boundaries: int) -> list[KeptHostRegion]:
    """Regions in the host tier between these tokens."""
    spans = itertools.pairwise(boundaries)
    return [KeptHostRegion(Region(0, 2, start, stop), HostRegion(1, 1, 0, 1), D, b"") for start, stop in spans]


def flat(extents: list[Extent]) -> list[int]:
    return [slot for first, length in extents for slot in range(first, first + length)]


def test_a_donation_moves_no_position_to_another_slot() -> None:
    cache = KvCache(64, "w")
    sequence = make_sequence(1)
    begin(cache, sequence)
    before = cache.extents(sequence, 0, 48)
    computed(cache, sequence)
    assert cache.extents(sequence, 0, 48) == before == [(0, 48)]
    assert (cache.shared_positions(sequence), cache.held_positions(sequence), cache.slot_table.held(1)) == (32, 48, 16)
    assert [cache.extents(sequence, *span) for span in ((10, 20), (31, 33), (32, 48))] == [
        [(10, 10)],
        [(31, 2)],
        [(32, 16)],
    ]


def test_a_sequence_that_shares_all_of_its_slots_stays_in_use() -> None:
    """It may be copied, and given more slots in the use that it has."""
    cache = KvCache(64, "w")
    sequence = make_sequence(1, list(range(48)))
    begin(cache, sequence)
    computed(cache, sequence)
    assert (cache.held_positions(sequence), cache.slot_table.held(1)) == (48, 0)
    cache.set_use(sequence, SlotUse.MOVING)
    assert cache.allocate(sequence, 5)
    assert (cache.slot_table.use(1), cache.slot_table.count(SlotUse.MOVING)) == (SlotUse.MOVING, 5)
    assert cache.extents(sequence, 40, 53) == [(40, 13)]


def test_what_would_be_free_without_a_sequence_counts_the_blocks_that_it_alone_uses() -> None:
    """The first of three blocks is another's, too."""
    cache = KvCache(192, "w")
    short, long = make_sequence(1, list(range(17))), make_sequence(2, list(range(49)))
    begin(cache, short, 17)
    computed(cache, short)
    begin(cache, long, 64)
    computed(cache, long)
    assert (cache.shared_positions(short), cache.shared_positions(long)) == (16, 48)
    assert cache.slots_gained_without(long) == 2 * 16 + 16
    before = cache.available_slots
    cache.release(long)
    assert cache.available_slots == before + 48
    assert cache.slots_gained_without(short) == 17
    cache.release(short)
    begin(cache, long, 64)
    computed(cache, long)
    assert cache.slots_gained_without(long) == 3 * 16 + 16


def test_another_one_reads_the_same_slots_and_writes_its_own() -> None:
    cache = KvCache(128, "w")
    first = make_sequence(1)
    begin(cache, first)
    computed(cache, first)
    second = make_sequence(2)
    assert cache.slots_needed(second, 48) == 16
    assert begin(cache, second) == 32
    assert cache.extents(second, 0, 32) == cache.extents(first, 0, 32)
    assert not set(flat(cache.extents(second, 32, 48))) & set(flat(cache.extents(first, 0, 48)))


def test_positions_without_slots_are_an_error() -> None:
    cache = KvCache(128, "w")
    sequence = make_sequence(1)
    begin(cache, sequence)
    computed(cache, sequence)
    with pytest.raises(ValueError, match="residency of \\[\\(32, 48\\)\\]"):
        cache.extents(sequence, 40, 49)
    with pytest.raises(KeyError):
        cache.extents(make_sequence(7), 0, 1)


def test_what_is_cached_counts_as_room_until_a_sequence_uses_it() -> None:
    cache = KvCache(64, "w")
    sequence = make_sequence(1)
    begin(cache, sequence)
    computed(cache, sequence)
    assert (cache.available_slots, cache.cached_slots, cache.slots_gained_without(sequence)) == (16, 0, 48)
    cache.release_to_prefix_cache(sequence)
    assert (cache.available_slots, cache.cached_slots, cache.slot_table.free) == (64, 32, 32)
    second = make_sequence(2)
    assert cache.slots_needed(second, 48) == 48, "to use an unused prefix takes available slots"
    begin(cache, second)
    assert (cache.available_slots, cache.slots_gained_without(second)) == (16, 48)


def test_ending_one_of_two_frees_only_what_the_other_does_not_use() -> None:
    cache = KvCache(128, "w")
    first, second = make_sequence(1), make_sequence(2)
    begin(cache, first)
    computed(cache, first)
    begin(cache, second)
    assert cache.slots_gained_without(second) == 16
    cache.release_to_prefix_cache(second)
    assert cache.cached_slots == 0
    assert cache.extents(first, 0, 40) == [(0, 40)]


def test_room_is_made_of_unused_prefixes() -> None:
    cache = KvCache(64, "w")
    old = make_sequence(1)
    begin(cache, old)
    cache.release_to_prefix_cache(computed(cache, old))
    assert cache.evict_prefixes(60)
    assert cache.cached_slots == 0
    assert not cache.evict_prefixes(65)
    new = make_sequence(2)
    assert begin(cache, new, 64) == 0


def test_prefixes_go_in_longer_stretches_than_must_so_that_extents_stay_long() -> None:
    cache = KvCache(256, "w")
    for number in range(4):
        sequence = make_sequence(number, [number] * 64)
        begin(cache, sequence, 64)
        cache.release_to_prefix_cache(computed(cache, sequence))
    assert cache.slot_table.free == 0
    assert cache.evict_prefixes(16)
    assert cache.slot_table.free == 16 + 256 // 8
    assert cache.cached_slots == 256 - 48
    new = make_sequence(9, [9] * 10)
    begin(cache, new, 20)
    assert cache.allocate(new, 20)
    assert len(cache.extents(new, 0, 40)) == 1


def test_one_slot_in_eight_is_freed_beyond_those_that_are_wanted() -> None:
    cache = KvCache(256, "w")
    sequence = make_sequence(1, [1] * 257)
    begin(cache, sequence, 256)
    sequence.valid = 256
    cache.release_to_prefix_cache(sequence)
    assert (cache.slot_table.free, cache.cached_slots) == (0, 256)
    assert cache.evict_prefixes(17)
    assert cache.slot_table.free == 64, "49 in whole blocks"


def test_what_was_donated_by_another_meanwhile_is_not_donated_again() -> None:
    cache = KvCache(128, "w")
    first, second = make_sequence(1), make_sequence(2, [*TEXT, *range(900, 924)])
    begin(cache, first)
    begin(cache, second, 64)
    computed(cache, first)
    computed(cache, second)
    assert (cache.shared_positions(first), cache.shared_positions(second)) == (32, 0)
    cache.release_to_prefix_cache(second)
    cache.check_integrity()
    assert cache.cached_slots == 32, "its own end hangs on the other's beginning; its copy of the beginning is free"
    assert cache.reusable_tokens(make_sequence(3, [*second.tokens, 1])) == 64


def test_slots_that_are_being_copied_into_are_not_allocated() -> None:
    cache = KvCache(64, "w")
    sequence = make_sequence(1)
    begin(cache, sequence)
    cache.set_use(sequence, SlotUse.MOVING)
    cache.share_prefix(sequence, 40)
    assert cache.shared_positions(sequence) == 0
    cache.release_to_prefix_cache(sequence)
    assert cache.slot_table.free == 64


def test_without_a_digest_nothing_is_shared() -> None:
    cache = KvCache(64)
    sequence = make_sequence(1)
    begin(cache, sequence)
    cache.release_to_prefix_cache(computed(cache, sequence))
    assert (cache.cached_slots, cache.reusable_tokens(make_sequence(2))) == (0, 0)


@pytest.mark.parametrize(
    ("boundaries", "reused"),
    [
        ((), 32),  # nothing kept
        ((0, 32, 40), 32),  # the rest comes from the host tier
        ((0, 20, 40), 32),  # less than a block is kept beyond: sooner computed than copied
        ((0, 16, 48), 16),  # a block is kept beyond
        ((0, 32, 90), 32),
        ((0, 16, 90), 16),  # whole regions only, so that none is copied over what others read
        ((0, 17, 90), 0),
    ],
)
def test_what_is_reused_ends_where_a_region_begins(boundaries: tuple[int, ...], reused: int) -> None:
    cache = KvCache(256, "w")
    first = make_sequence(1)
    begin(cache, first)
    computed(cache, first)
    second = make_sequence(2, [*TEXT[:32], *range(500, 560)])
    second.kept = kept(*boundaries)
    assert begin(cache, second, 100) == reused


def test_no_kind_of_rope_depends_on_a_sequence_s_length() -> None:
    # One that does would have to be part of the name of every prefix: see `KvCache._chain_of`. `dynamic` has other
    # frequencies only beyond the positions that a file names, `longrope` beyond those that a text may have here.
    assert RopeConfig(kind="longrope", original_max_positions=32).most_positions(128) == 32
    kinds = {kind for family in FAMILIES.values() for kind in family.rope_kinds}
    assert kinds == {"default", "linear", "dynamic", "llama3", "yarn", "longrope"}


# --- isolation ---


class Drawn:
    """Dice that a test draws."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def randint(self, low: int, high: int) -> int:
        drawn: int = self._data.draw(st.integers(low, high))
        return drawn


@settings(max_examples=60)
@given(data=st.data(), slots=st.integers(40, 200))
def test_whatever_happens_each_sequence_reads_its_own_slots(data: st.DataObject, slots: int) -> None:
    stage = IsolationModel(slots, Drawn(data))
    for _ in range(30):
        stage.turn()
        stage.check()


@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_operations_read_nothing_foreign(seed: int) -> None:
    counts = tenant_isolation.run(5_000, 300, seed)
    assert counts["tokens reused"] > 1_000
    assert counts["preempted"] > 100


def test_the_campaign_sees_a_tenant_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "chain_root", lambda tenant, digest, adapter: b"all")
    with pytest.raises(ForeignRead):
        tenant_isolation.run(20_000, 300, 1)


def test_the_campaign_sees_a_block_given_away_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixCache, "_is_evictable", lambda self, block: block.is_cached and block.children == 0)
    with pytest.raises(AssertionError):
        tenant_isolation.run(20_000, 300, 1)


def test_the_campaign_sees_a_donation_before_the_tokens_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = KvCache.share_prefix
    monkeypatch.setattr(
        KvCache, "share_prefix", lambda self, sequence, tokens: honest(self, sequence, len(sequence.tokens))
    )
    with pytest.raises(ForeignRead):
        tenant_isolation.run(20_000, 300, 1)


def test_slots_that_are_kept_until_needed_count_as_available_and_go_before_prefixes() -> None:
    cache = KvCache(96, "w")
    sequence = make_sequence(1)
    begin(cache, sequence)
    computed(cache, sequence)
    begin_count = cache.slot_table.free
    cache.reserve("kept", 10)
    before = cache.available_slots
    cache.keep_until_needed("kept")
    assert (cache.available_slots, cache.slot_table.free) == (before + 10, begin_count - 10)
    cache.check_integrity()
    assert cache.evict_prefixes(cache.slot_table.free + 1)
    assert (cache.slot_table.held("kept"), cache.take_back("kept")) == (0, False)
    assert cache.shared_positions(sequence) == 32
    cache.check_integrity()


def test_slots_that_were_kept_are_taken_back() -> None:
    cache = KvCache(96, "w")
    cache.reserve("kept", 10)
    cache.keep_until_needed("kept")
    assert cache.take_back("kept")
    assert cache.available_slots == 86
    assert not cache.evict_prefixes(87)
    cache.check_integrity()


def test_slots_that_are_about_to_go_are_not_kept() -> None:
    cache = KvCache(96, "w")
    cache.reserve("kept", 90)
    cache.keep_until_needed("kept")
    cache.withhold_beyond(50)
    assert (cache.slot_table.held("kept"), cache.available_slots) == (0, 50)


def test_to_take_back_what_was_not_kept_changes_no_count() -> None:
    cache = KvCache(96, "w")
    cache.reserve("reserved", 10)
    assert not cache.take_back("reserved")
    assert (cache.available_slots, cache.cached_slots) == (86, 0)
