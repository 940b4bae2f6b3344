"""A counter in etcd that is written and watched: each number once and in order, and whether the watcher was told so."""

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdError, EtcdUnavailable
from dunlin.membership.txn import PutOp as Write
from dunlin.membership.txn import ValueIs
from dunlin.membership.watch import PrefixWatch, PutEvent, ResetEvent, WatchEvent

COUNTER = "/chaos/counter"


@dataclass(frozen=True, slots=True)
class EtcdChaosPlan:
    """`values` numbers, one per `pace_s` at most, and more until each trouble has come; troubles come one after the
    other with `calm_s` between them.

    `kinds` are names of `DISRUPTIONS`, again and again in this order.
    """

    values: int = 1_000
    pace_s: float = 0.1
    calm_s: float = 1.0
    away_s: float = 4.5
    kinds: tuple[str, ...] = ("kill leader", "stop leader", "compact", "compact behind", "kill watched", "stop watched")


@dataclass(slots=True)
class WatchHistory:
    """What was written (revision and time by number), what the watcher was told (with times), and the troubles."""

    written: dict[int, tuple[int, float]] = field(default_factory=dict)
    seen: list[tuple[float, WatchEvent]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    unknown: int = 0
    done: bool = False

    @property
    def newest(self) -> int:
        """The highest number that is surely written."""
        return max(self.written, default=0)

    @property
    def resets(self) -> int:
        """How often the watcher was told to start over, the first time not counted."""
        return sum(isinstance(event, ResetEvent) for _, event in self.seen) - 1


@dataclass(slots=True)
class HistoryVerdict:
    """A tale judged: how many numbers came as changes, how many only a snapshot tells of, and what is wrong."""

    as_changes: int = 0
    under_snapshots: int = 0
    wrong: list[str] = field(default_factory=list)


def check_history(tale: WatchHistory) -> HistoryVerdict:
    """Every number once and in order, with the revision that its writer knows."""
    reading = HistoryVerdict()
    last = 0
    for _, event in tale.seen:
        if isinstance(event, ResetEvent):
            last = _read_snapshot(reading, last, event)
        elif isinstance(event, PutEvent):
            number = int(event.item.value)
            if number != last + 1:
                reading.wrong.append(f"{number} came after {last}")
            if event.item.mod_revision != tale.written.get(number, (0, 0.0))[0]:
                reading.wrong.append(f"{number} came with revision {event.item.mod_revision}, not its own")
            reading.as_changes += 1
            last = number
        else:
            reading.wrong.append(f"the counter was deleted after {last}")
    if last != tale.newest:
        reading.wrong.append(f"the last one seen is {last}, the last one written {tale.newest}")
    return reading


def _read_snapshot(reading: HistoryVerdict, last: int, reset: ResetEvent) -> int:
    """A snapshot may repeat the last number, or skip some whose history is gone; it never goes back."""
    number = int(reset.items[0].value) if reset.items else 0
    if number < last:
        reading.wrong.append(f"a snapshot with {number} came after {last}")
    reading.under_snapshots += max(0, number - last)
    return max(number, last)


async def write_all(client: EtcdClient, plan: EtcdChaosPlan, tale: WatchHistory) -> None:
    """Write 1, 2, 3 …, each exactly once whatever becomes of the answers. The key must hold 0."""
    for number in itertools.count(1):
        if number > plan.values and len(tale.troubles) >= len(plan.kinds):
            break
        began_s = time.monotonic()
        while number not in tale.written:
            try:
                await _write(client, number, tale)
            except EtcdUnavailable:
                tale.unknown += 1
                await asyncio.sleep(0.05)
        await asyncio.sleep(max(0.0, plan.pace_s - (time.monotonic() - began_s)))
    tale.done = True


async def _write(client: EtcdClient, number: int, tale: WatchHistory) -> None:
    before, after = b"%d" % (number - 1), b"%d" % number
    result = await client.txn([ValueIs(COUNTER, before)], [Write(COUNTER, after)])
    if result.succeeded:
        tale.written[number] = (result.revision, time.monotonic())
        return
    item = await client.get(COUNTER)  # an earlier try, whose answer was lost
    if item is None or item.value != after:
        raise EtcdError(f"the counter is {item and item.value!r} where {after!r} was written")
    tale.written[number] = (item.mod_revision, time.monotonic())


async def watch_all(watch: PrefixWatch, tale: WatchHistory) -> None:
    """Write down what the watcher is told, for ever."""
    async for event in watch:
        tale.seen.append((time.monotonic(), event))


def revision_of(event: WatchEvent) -> int:
    """The revision that an event tells of."""
    match event:
        case PutEvent():
            return event.item.mod_revision
        case ResetEvent():
            return event.revision
        case _:
            return event.mod_revision
