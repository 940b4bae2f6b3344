"""A short soak of two real engines finds nothing; and what is taken away from its accounts it finds."""

from collections.abc import Iterator

import pytest

from benchmarks.engine.soak.__main__ import run
from benchmarks.engine.soak.checks import check_engine, check_tier
from benchmarks.engine.soak.soak import EngineSoak, SoakPlan
from dunlin.engine.decoder.memory.granule_ledger import LedgerRecord, RangeKind
from services.instance.kv.slot_table import SlotTable


@pytest.fixture(scope="module")
def soak() -> Iterator[EngineSoak]:
    with EngineSoak(SoakPlan(seed=3, rounds=1, orders=60)) as made:
        yield made


def test_a_round_ends_with_everything_in_its_place(soak: EngineSoak) -> None:
    assert soak.run_round() == []
    counts = soak.counts()
    assert counts["message: Step"] + counts["message: Resume"] == counts["message: StepDone"] > 0
    assert counts["message: Interrupt"] == counts["message: Interrupted"]
    assert counts["message: Transfer"] == counts["message: TransferDone"]
    assert counts["message: Remap"] == counts["message: RemapDone"] + counts["message: Unsupported"]


def test_what_is_missing_is_found(soak: EngineSoak, monkeypatch: pytest.MonkeyPatch) -> None:
    one, arena = soak.engines[0], soak.arenas[0]
    assert check_engine(one, arena, ()) == []
    assert one.book.slots.allocate("nobody", 3)
    assert "where open sequences own" in check_engine(one, arena, ())[0]
    one.book.slots.release("nobody")
    monkeypatch.setattr(SlotTable, "check_integrity", _broken)
    assert check_engine(one, arena, ()) == ["first: AssertionError: a slot is in two places"]
    monkeypatch.undo()
    assert one.child.rooms.open(999_999, [0], [1])
    assert check_engine(one, arena, [999_999]) == ["first: the room 999999 is open"]
    one.child.rooms.close(999_999)
    monkeypatch.setattr(LedgerRecord, "granules", lambda self, key: [] if key.kind is RangeKind.KV else [1])
    assert "LedgerError" in check_engine(one, arena, ())[0]


def _broken(table: SlotTable) -> None:
    raise AssertionError("a slot is in two places")


def test_a_region_too_many_and_a_write_into_a_free_room_are_found(soak: EngineSoak) -> None:
    assert check_tier(soak.tier, soak.transfers) == []
    region = soak.tier.take(100)
    assert region is not None
    assert "rooms of the tier hold" in check_tier(soak.tier, soak.transfers)[0]
    soak.tier.free(region)
    assert check_tier(soak.tier, soak.transfers) == []
    soak.tier._memory[region.offset_bytes + 5] = 1
    assert "written while it was free" in check_tier(soak.tier, soak.transfers)[0]
    soak.tier._memory[region.offset_bytes + 5] = 0


def test_the_command_says_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = iter([[], ["a slot is missing"], []])
    monkeypatch.setattr(EngineSoak, "run_round", lambda self: next(broken))
    outcome = run(SoakPlan(seed=3, rounds=3, orders=1), print_s=0.0)
    assert outcome.failures == ["round 0: a slot is missing"]
    assert outcome.figures["first: descriptors"] > 0
