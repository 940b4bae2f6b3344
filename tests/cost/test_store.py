"""The scaling information base: what is saved comes back, and what is no store is refused."""

import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import BatchCounts, PiecewiseCurve, StepModel
from dunlin.cost.profile_quality import ProfileQuality
from dunlin.cost.step_fit import LearntSteps, StepSums
from dunlin.cost.store import ProfileKey, ProfileStore, StepPoint, StoreError, TransferPoint
from dunlin.cost.strategies import PrefillModel, Strategy
from dunlin.messages.types import TransferKind

KEY = ProfileKey("tiny", "cpu", "threads=1")


def timing(slots: int = 1000) -> EngineTiming:
    step = StepModel(
        PiecewiseCurve((1.0, 8.0), (1e-3, 2e-3)), PiecewiseCurve((1.0,), (1e-4,)), 1e-5, 1e-9, 0.0, 1e-6, 2e-6, 3e-9
    )
    moves = TransferModels(TransferModel(1e-4, 1e9), {TransferKind.SLAB_TO_HOST: TransferModel(2e-4, 3e9)})
    return EngineTiming(step, moves, 1.5, slots, 256)


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    steps = [
        StepPoint("decode", BatchCounts(0, 0, 0, 0, 3, 99), 0.01, 0.001),
        StepPoint("prefill", BatchCounts(1, 2, 3, 4), 0.02),
        StepPoint("sampled", BatchCounts(0, 0, 0, 0, 3, 99, 2), 0.03),
    ]
    moves = [TransferPoint(TransferKind.HOST_TO_SLAB, 4096, 0.003)]
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing(), steps, moves)
    with ProfileStore(tmp_path / "db") as store:
        assert store.keys() == [KEY]
        assert (store.timing("tiny"), store.step_points(KEY), store.transfer_points(KEY)) == (timing(), steps, moves)


def test_how_well_it_was_measured_comes_back_too(tmp_path: Path) -> None:
    quality = ProfileQuality(True, 1, (("decode", 0.25),), (("host_to_slab", 0.5),))
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", replace(timing(), quality=quality))
        assert store.timing("tiny").quality == quality


def test_a_profile_of_an_older_version_still_loads(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing())
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("update profile set timing = json_remove(timing, '$.quality', '$.layers', '$.host')")
    with ProfileStore(tmp_path / "db") as store:
        assert store.timing("tiny") == timing()


def test_a_store_of_version_1_gets_the_column_of_rows_with_a_temperature(tmp_path: Path) -> None:
    steps = [StepPoint("decode", BatchCounts(0, 0, 0, 0, 3, 99), 0.01, 0.001)]
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing(), steps)
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("alter table step_point drop column sampled_rows")
        connection.execute("pragma user_version = 1")
    later = [StepPoint("sampled", BatchCounts(0, 0, 0, 0, 3, 99, 2), 0.03)]
    other = replace(KEY, device="other")
    with ProfileStore(tmp_path / "db") as store:
        assert store.step_points(KEY) == steps
        store.save(other, "2026-01-02", timing(), later)
    with ProfileStore(tmp_path / "db") as store:
        assert (store.step_points(KEY), store.step_points(other)) == (steps, later)


def test_a_later_profile_takes_an_earlier_ones_place(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing(), [StepPoint("decode", BatchCounts(), 1.0)])
        store.save(KEY, "2026-01-02", timing(slots=7))
        assert store.timing("tiny").slots == 7
        assert store.step_points(KEY) == []


def test_of_several_devices_the_latest_is_meant(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(ProfileKey("tiny", "new", ""), "2026-01-02", timing(slots=2))
        store.save(ProfileKey("tiny", "old", ""), "2026-01-01", timing(slots=1))
        assert store.timing("tiny").slots == 2


def test_strategies_come_back_per_degree(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save_strategy("m", "d", Strategy(4, 2), PrefillModel(1.0, 2.0, 3.0))
        store.save_strategy("m", "d", Strategy(1, 8), PrefillModel(4.0, 5.0, 6.0))
        assert store.strategies("m", "d") == {(1, 8): PrefillModel(4.0, 5.0, 6.0), (4, 2): PrefillModel(1.0, 2.0, 3.0)}


def test_an_unknown_model_is_refused_with_what_is_known(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing())
        with pytest.raises(StoreError, match="no profile of other; measured: tiny"):
            store.timing("other")


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"no database, but long enough to be read as one" * 9)
    with pytest.raises(StoreError, match="db: cannot be used"):
        ProfileStore(tmp_path / "db")


def test_another_versions_store_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(StoreError, match="another version"):
        ProfileStore(tmp_path / "db")


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("create table theirs (id integer)")
    before = (tmp_path / "db").read_bytes()
    with pytest.raises(StoreError, match="no store of profiles"):
        ProfileStore(tmp_path / "db")
    assert (tmp_path / "db").read_bytes() == before


class Dying(sqlite3.Connection):
    """This process ends while a store is made."""

    def before(self, sql: str) -> None:
        if "create table move_point" in sql:
            raise KeyboardInterrupt

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        self.before(sql)
        return super().execute(sql, *arguments)

    def executescript(self, sql: str) -> sqlite3.Cursor:
        self.before("")
        for statement in sql.split(";"):
            self.execute(statement)
        return self.cursor()


@pytest.mark.parametrize("version", [0, 1])
def test_a_store_that_another_process_makes_at_the_same_time_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    path = tmp_path / "db"
    if version == 1:
        with ProfileStore(path) as store:
            store.save(KEY, "2026-01-01", timing())
        with sqlite3.connect(path) as connection:
            connection.execute("alter table step_point drop column sampled_rows")
            connection.execute("pragma user_version = 1")

    class Late(Dying):
        """Another process comes in once this one has seen the version."""

        def before(self, sql: str) -> None:
            if sql != "pragma foreign_keys = on" and "user_version;" not in f"{sql};":
                monkeypatch.undo()
                with ProfileStore(path) as other:
                    other.keys()

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Late))
    with ProfileStore(path) as store:
        assert store.models() == (["tiny"] if version else [])


def test_a_store_whose_making_was_broken_off_is_as_if_it_had_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Dying))
    with pytest.raises(KeyboardInterrupt):
        ProfileStore(tmp_path / "db")
    monkeypatch.undo()
    with ProfileStore(tmp_path / "db") as store:
        assert store.keys() == []


def test_a_store_that_turns_out_to_be_damaged_is_refused(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing())
    pages = (tmp_path / "db").read_bytes()
    (tmp_path / "db").write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))
    with pytest.raises(StoreError, match="db: cannot be used"), ProfileStore(tmp_path / "db") as store:
        store.timing("tiny")


def test_a_damaged_profile_is_refused(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing())
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("update profile set timing = '{}'")
    with ProfileStore(tmp_path / "db") as store, pytest.raises(StoreError, match="damaged"):
        store.timing("tiny")


@pytest.mark.parametrize("price", ["NaN", "Infinity"])
def test_a_price_that_is_no_number_is_refused(tmp_path: Path, price: str) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing())
        store.save_strategy("m", "d", Strategy(1, 1), PrefillModel(1.0, 2.0, 3.0))
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("update profile set timing = replace(timing, '2e-06', ?)", (price,))
        connection.execute("update strategy set prefill = replace(prefill, '2.0', ?)", (price,))
    with ProfileStore(tmp_path / "db") as store:
        with pytest.raises(StoreError, match=f"damaged.*{price} is no time"):
            store.timing("tiny")
        with pytest.raises(StoreError, match=f"damaged.*{price} is no time"):
            store.strategies("m", "d")


def test_what_was_learnt_is_kept_by_engine_beside_profiles(tmp_path: Path) -> None:
    learnt, newer = LearntSteps(StepSums(), StepSums(), 7, (0.1, 0.2), (3, 4)), LearntSteps(StepSums(), StepSums(), 8)
    with ProfileStore(tmp_path / "db") as store:
        store.save_learnt(KEY, "0.1", "2026-01-01", learnt)
        store.save_learnt(KEY, "0.2", "2026-01-01", newer)
        store.save(KEY, "2026-01-01", timing())
        store.save_learnt(KEY, "0.2", "2026-01-02", newer)
    with ProfileStore(tmp_path / "db") as store:
        assert [store.learnt(KEY, engine) for engine in ("0.1", "0.2", "0.3")] == [learnt, newer, None]
        assert store.learnt(ProfileKey("tiny", "cpu", "threads=2"), "0.1") is None
        assert store.models() == ["tiny"]


def test_a_store_from_before_there_was_anything_learnt_is_used(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save(KEY, "2026-01-01", timing())
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("drop table learnt")
    with ProfileStore(tmp_path / "db") as store:
        assert store.learnt(KEY, "0.1") is None
        assert store.timing("tiny") == timing()


def test_what_was_learnt_and_is_damaged_is_refused(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "db") as store:
        store.save_learnt(KEY, "0.1", "2026-01-01", LearntSteps(StepSums(), StepSums()))
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("update learnt set steps = '{}'")
    with ProfileStore(tmp_path / "db") as store, pytest.raises(StoreError, match="what was learnt of"):
        store.learnt(KEY, "0.1")
