"""The catalog of regions: names, claims, quarantine, and the check of its books."""

from collections.abc import Callable
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.pool import FindRegions
from dunlin.messages.types import Region
from services.kvstore.regions.allocator import AllocatorError, RangeAllocator
from services.kvstore.regions.catalog import CatalogError, RegionCatalog, RegionEntry, RegionState
from tests.services.kvstore.bench import OTHER, RESTARTED, UNIT, WRITER, ask, joined, reserve


def test_the_check_sees_books_that_contradict_each_other() -> None:
    core = joined()
    host = reserve(core)
    core.catalog.allocator.free(host.handle, host.generation)
    with pytest.raises(CatalogError, match="0 ranges and 1 entries"):
        core.catalog.check_integrity()
    core.catalog.allocator.allocate(2 * UNIT)
    with pytest.raises(CatalogError, match="region 1 is entered as"):
        core.catalog.check_integrity()
    core = joined()
    reserve(core)
    core.catalog.allocator.free_bytes -= 1
    with pytest.raises(AllocatorError):
        core.catalog.check_integrity()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda books: books._of.update({OTHER: books._of.pop(WRITER)}), "not among those of instance/i0@10"),
        (lambda books: books._of_key.update({"s": books._of_key.pop("r")}), "not among those of request r"),
        (lambda books: books._of_key.update({"s": {9: None}}), r"1 entries, \[1, 1\] in an index"),
        (lambda books: books._named.clear(), r"by name \[\]"),
    ],
)
def test_the_check_sees_an_index_that_contradicts_the_regions(
    spoil: Callable[[RegionCatalog], object], message: str
) -> None:
    books = catalog()
    region(books)
    books.check_integrity()
    spoil(books)
    with pytest.raises(CatalogError, match=message):
        books.check_integrity()


D = Address("dispatcher", "d", 1)


def catalog(units: int = 4) -> RegionCatalog:
    return RegionCatalog(RangeAllocator(units * UNIT, UNIT, 9))


def region(books: RegionCatalog, writer: Address = WRITER, checksum: int | None = 7, **fields: Any) -> RegionEntry:
    """A region, committed unless the checksum is None."""
    entry = books.reserve(writer, ask(**({"key": "r"} | fields)))
    assert entry is not None
    if checksum is not None:
        assert books.commit(writer, entry.host.handle, entry.host.generation, checksum)
    return books.entries_of(writer)[-1]


def wanted(attempt: int = 2, **fields: Any) -> FindRegions:
    names: dict[str, Any] = {"dispatcher": D, "request": 1, "weights_digest": "w", "kv_dtype": "fp32"}
    return FindRegions(1, "r", attempt=attempt, **(names | fields))


def test_a_reserved_region_is_committed_once_with_one_checksum() -> None:
    books = catalog()
    entry = region(books, checksum=None)
    name = (entry.host.handle, entry.host.generation)
    assert entry.state is RegionState.RESERVED
    assert not books.commit(OTHER, *name, 7), "it is another writer's"
    assert not books.commit(WRITER, entry.host.handle, entry.host.generation + 1, 7)
    assert books.commit(WRITER, *name, 7)
    assert books.commit(WRITER, *name, 7), "a repetition is the same commit"
    assert not books.commit(WRITER, *name, 8)
    committed = books.find(WRITER, *name)
    assert committed is not None
    assert (committed.state, committed.host.checksum) == (RegionState.COMMITTED, 7)


def test_no_room_and_no_bytes_reserve_nothing() -> None:
    books = catalog(units=1)
    assert books.reserve(WRITER, ask(length_bytes=0)) is None
    region(books)
    assert books.reserve(WRITER, ask()) is None
    assert len(books) == 1


def test_a_claim_renames_each_region_and_orders_them_by_start_the_longest_first() -> None:
    books = catalog()
    spans = [(4, 8), (0, 2), (0, 4)]
    old = [region(books, region=Region(0, 2, *span)) for span in spans]
    claimed = books.claim(OTHER, wanted())
    assert [(one.request.region.start, one.request.region.stop) for one in claimed] == [(0, 4), (0, 2), (4, 8)]
    assert {one.writer for one in claimed} == {OTHER}
    assert {one.request.attempt for one in claimed} == {2}
    assert all(books.find(WRITER, one.host.handle, one.host.generation) is None for one in old)
    assert books.known_writers() == [OTHER]
    books.check_integrity()


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 1),
        ({"attempt": 1}, 1),
        ({"attempt": 0}, 0),
        ({"attempt": 0, "request": 2}, 1),
        ({"weights_digest": "v"}, 0),
        ({"kv_dtype": "bf16"}, 0),
    ],
)
def test_only_fitting_regions_of_no_newer_attempt_are_claimed(fields: dict[str, Any], count: int) -> None:
    books = catalog()
    region(books)
    region(books, checksum=None)
    assert len(books.claim(OTHER, wanted(**fields))) == count


def test_the_end_of_a_stream_quarantines_what_is_not_committed() -> None:
    books = catalog()
    kept, open_ = region(books), region(books, checksum=None)
    assert books.orphan_writer(WRITER, absence=3) == 1
    assert [entry.state for entry in books.entries_of(WRITER)] == [RegionState.COMMITTED, RegionState.QUARANTINED]
    assert books.orphan_writer(WRITER, absence=4) == 1
    assert books.commit(WRITER, open_.host.handle, open_.host.generation, 5), "its writer is back"
    books.free_orphans(WRITER, absence=4)
    assert len(books) == 2, "the first absence counts"
    books.free_orphans(WRITER, absence=3)
    assert [entry.host.handle for entry in books.entries_of(WRITER)] == [open_.host.handle]
    assert books.find(WRITER, kept.host.handle, kept.host.generation) is None
    assert books.pop_freed_keys() == ["r"]
    assert books.pop_freed_keys() == []


def test_a_writer_that_is_back_keeps_the_quarantined_regions_that_it_names() -> None:
    books = catalog()
    first, second, kept = region(books, checksum=None), region(books, checksum=None), region(books)
    books.orphan_writer(WRITER, absence=1)
    books.free_quarantined(WRITER, but=[(second.host.handle, second.host.generation)])
    assert [entry.host.handle for entry in books.entries_of(WRITER)] == [second.host.handle, kept.host.handle]
    books.free_unwritten(WRITER)
    assert [entry.host.handle for entry in books.entries_of(WRITER)] == [kept.host.handle]
    assert first.host.handle not in [entry.host.handle for entry in books.entries_of_key("r")]
    books.check_integrity()


def test_incarnations_of_one_name_are_listed_while_they_have_regions() -> None:
    books = catalog()
    first = region(books)
    region(books, RESTARTED)
    region(books, OTHER)
    assert books.incarnations(RESTARTED) == [WRITER, RESTARTED]
    assert not books.release(RESTARTED, first.host.handle, first.host.generation)
    assert books.release(WRITER, first.host.handle, first.host.generation)
    assert books.incarnations(WRITER) == [RESTARTED]
    assert books.known_writers() == [RESTARTED, OTHER]
