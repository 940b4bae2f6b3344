"""The scaling information base: measured points and fitted models in SQLite, per model, device and parallelism; and
what instances have learnt of their steps, besides per version of the engine.

Keeps what it is given. Does not measure (`profile`) and does not fit (`fit_points`). A core never imports it.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts
from dunlin.cost.serialize import parse_learnt, parse_timing, serialize_learnt, serialize_timing
from dunlin.cost.step_fit import LearntSteps
from dunlin.cost.strategies import PrefillModel, Strategy
from dunlin.messages.types import TransferKind

_VERSION = 2
_LEARNT = """
create table if not exists learnt (
    model text not null, device text not null, parallelism text not null, engine text not null,
    learnt_at text not null, steps text not null, primary key (model, device, parallelism, engine));
"""
_COUNTS = tuple(field.name for field in fields(BatchCounts))
_SCHEMA = f"""
create table profile (
    id integer primary key, model text not null, device text not null, parallelism text not null,
    measured_at text not null, timing text not null, unique (model, device, parallelism));
create table step_point (
    profile integer not null references profile (id) on delete cascade, regime text not null,
    {", ".join(f"{name} integer not null" for name in _COUNTS)}, seconds real not null, gap_s real not null);
create table move_point (
    profile integer not null references profile (id) on delete cascade, kind text not null,
    bytes integer not null, seconds real not null);
create table strategy (
    model text not null, device text not null, sp integer not null, tp integer not null, prefill text not null,
    primary key (model, device, sp, tp));
"""
_UPGRADES = {0: _SCHEMA, 1: "alter table step_point add column sampled_rows integer not null default 0;"}
"""What makes a store of each earlier version, 0 an empty file, one of this."""


class StoreError(ValueError):
    """The store cannot be read, or lacks what was asked for; the message says which file and what is there."""


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """The subject of a profile: a model (by `stored_name`) on a device, and its split (`tp=1`, `threads=2`)."""

    model: str
    device: str
    parallelism: str

    def __str__(self) -> str:
        return f"{self.model} on {self.device}, {self.parallelism}"


def stored_name(model: str) -> str:
    """What a model is called in stores: of a directory its whole path, for `./model` is another one elsewhere."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def engine_key(model: str, device: str, threads: int, dtype: str, *, deterministic: bool, ranks: int = 1) -> ProfileKey:
    """The key of a live engine with these settings."""
    split = f"threads={threads},dtype={dtype}"
    split += f",ranks={ranks}" if ranks > 1 else ""
    return ProfileKey(stored_name(model), device, split + (",deterministic" if deterministic else ""))


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step of the live loop: what it computed, the engine's time in it, and what passed between it and the next."""

    regime: str
    batch: BatchCounts
    seconds: float
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferPoint:
    """A copy of so many bytes."""

    kind: TransferKind
    byte_count: int
    seconds: float


class ProfileStore:
    """Owns the connection. Use as a context manager. Raises StoreError where the file is no store, and at the end of
    the context for what SQLite raised within: a file that is damaged, locked or full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        with ExitStack() as opened:
            opened.push(self.__exit__)
            self._connection.execute("pragma foreign_keys = on")
            self._prepare()
            opened.pop_all()

    def __enter__(self) -> "ProfileStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()
        if isinstance(error, sqlite3.Error):
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> StoreError:
        return StoreError(f"{self._path}: cannot be used as a store of profiles: {error}")

    def _prepare(self) -> None:
        if self._version() in _UPGRADES:
            with self._connection:  # all of it or nothing
                self._connection.execute("begin immediate")
                self._upgrade(self._version())  # another process may have done it before this one had the file
        if self._version() != _VERSION:
            raise StoreError(
                f"{self._path}: written by another version ({self._version()}, not {_VERSION}): measure again"
            )
        self._connection.execute(_LEARNT)  # stores of this version may be without

    def _version(self) -> int:
        return int(self._connection.execute("pragma user_version").fetchone()[0])

    def _upgrade(self, version: int) -> None:
        if version == 0 and self._connection.execute("select * from sqlite_master").fetchone():
            raise StoreError(f"{self._path}: a database, and no store of profiles")
        if version in _UPGRADES:
            for statement in _UPGRADES[version].split(";"):
                self._connection.execute(statement)
            self._connection.execute(f"pragma user_version = {_VERSION}")

    def save(
        self,
        key: ProfileKey,
        measured_at: str,
        timing: EngineTiming,
        steps: Iterable[StepPoint] = (),
        moves: Iterable[TransferPoint] = (),
    ) -> None:
        """Keep a profile in place of an earlier one of that key."""
        plain = json.dumps(serialize_timing(timing))
        with self._connection as connection:
            connection.execute("delete from profile where (model, device, parallelism) = (?, ?, ?)", astuple(key))
            row = connection.execute(
                "insert into profile (model, device, parallelism, measured_at, timing) values (?, ?, ?, ?, ?)",
                (*astuple(key), measured_at, plain),
            ).lastrowid
            connection.executemany(
                f"insert into step_point (profile, regime, {', '.join(_COUNTS)}, seconds, gap_s) "
                f"values ({', '.join('?' * (len(_COUNTS) + 4))})",
                [(row, p.regime, *astuple(p.batch), p.seconds, p.gap_s) for p in steps],
            )
            connection.executemany(
                "insert into move_point values (?, ?, ?, ?)",
                [(row, p.kind.name, p.byte_count, p.seconds) for p in moves],
            )

    def keys(self) -> list[ProfileKey]:
        """The keys of all profiles, the latest first."""
        rows = self._connection.execute(
            "select model, device, parallelism from profile order by measured_at desc, id desc"
        )
        return [ProfileKey(*row) for row in rows]

    def models(self) -> list[str]:
        """The models that have a profile."""
        return sorted({key.model for key in self.keys()})

    def timing(self, model: str) -> EngineTiming:
        """The latest profile of that model. Raises StoreError where there is none, or it is damaged."""
        for key in self.keys():
            if key.model == stored_name(model):
                return self.timing_of(key)
        known = ", ".join(self.models()) or "none yet"
        raise StoreError(f"{self._path}: no profile of {model}; measured: {known}; `dunlin profile` makes one")

    def timing_of(self, key: ProfileKey) -> EngineTiming:
        """One profile. Raises StoreError."""
        row = self._connection.execute(
            "select timing from profile where (model, device, parallelism) = (?, ?, ?)", astuple(key)
        ).fetchone()
        if row is None:
            known = "; ".join(map(str, self.keys())) or "none yet"
            raise StoreError(f"{self._path}: no profile of {key}; measured: {known}")
        try:
            return parse_timing(_parsed(row[0]))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self._path}: the profile of {key} is damaged: {error!r}") from error

    def save_learnt(self, key: ProfileKey, engine: str, learnt_at: str, learnt: LearntSteps) -> None:
        """Keep what the steps of an engine of that version taught, in place of what was kept before."""
        row = (*astuple(key), engine, learnt_at, json.dumps(serialize_learnt(learnt)))
        with self._connection as connection:
            connection.execute("insert or replace into learnt values (?, ?, ?, ?, ?, ?)", row)

    def learnt(self, key: ProfileKey, engine: str) -> LearntSteps | None:
        """What was kept of such an engine; None: nothing. Raises StoreError where it is damaged."""
        row = self._connection.execute(
            "select steps from learnt where (model, device, parallelism, engine) = (?, ?, ?, ?)",
            (*astuple(key), engine),
        ).fetchone()
        try:
            return None if row is None else parse_learnt(_parsed(row[0]))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self._path}: what was learnt of {key} is damaged: {error!r}") from error

    def step_points(self, key: ProfileKey) -> list[StepPoint]:
        """The steps of a profile, in the order of measurement."""
        rows = self._connection.execute(
            f"select regime, {', '.join(_COUNTS)}, seconds, gap_s from step_point join profile on id = profile"
            " where (model, device, parallelism) = (?, ?, ?) order by step_point.rowid",
            astuple(key),
        )
        return [StepPoint(regime, BatchCounts(*counts), seconds, gap_s) for regime, *counts, seconds, gap_s in rows]

    def transfer_points(self, key: ProfileKey) -> list[TransferPoint]:
        """The moves of a profile, in the order of measurement."""
        rows = self._connection.execute(
            "select kind, bytes, seconds from move_point join profile on id = profile"
            " where (model, device, parallelism) = (?, ?, ?) order by move_point.rowid",
            astuple(key),
        )
        return [TransferPoint(TransferKind[kind], byte_count, seconds) for kind, byte_count, seconds in rows]

    def save_strategy(self, model: str, device: str, strategy: Strategy, prefill: PrefillModel) -> None:
        """Keep equation 7 of a strategy."""
        with self._connection as connection:
            connection.execute(
                "insert or replace into strategy values (?, ?, ?, ?, ?)",
                (model, device, strategy.sp, strategy.tp, json.dumps(asdict(prefill))),
            )

    def strategies(self, model: str, device: str) -> dict[Strategy, PrefillModel]:
        """The strategies that were kept. Raises StoreError where they are damaged."""
        rows: Sequence[tuple[int, int, str]] = self._connection.execute(
            "select sp, tp, prefill from strategy where (model, device) = (?, ?) order by sp, tp", (model, device)
        ).fetchall()
        try:
            return {Strategy(sp, tp): PrefillModel(**_parsed(plain)) for sp, tp, plain in rows}
        except (TypeError, ValueError) as error:
            raise StoreError(f"{self._path}: the strategies of {model} are damaged: {error!r}") from error


def _parsed(plain: str) -> Any:
    """JSON without the numbers that JSON does not have: NaN passes every comparison with a bound."""
    return json.loads(plain, parse_constant=_refuse)


def _refuse(number: str) -> float:
    raise ValueError(f"{number} is no time")
