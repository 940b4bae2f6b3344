"""Leader election: every candidate holds a key under its lease, and the oldest key leads.

The term (*epoch*) is the create revision of the leader's key, so a later term has a higher number. A candidate that may
have lost its lease, by its own clock, is deposed at once and stands again with a new key: no term is ever led twice.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdError, LeaseLost
from dunlin.membership.lease_keeper import Clock, LeaseKeeper, boot_clock_s, first_result
from dunlin.membership.txn import CreatedAt, PutOp
from dunlin.membership.watch import DeletedEvent, PrefixWatch, ResetEvent, WatchEvent
from dunlin.membership.watch import PutEvent as Written
from dunlin.messages.membership import Deposed, Elected

_log = logging.getLogger(__name__)

_RETRY_S = 0.2

OnChange = Callable[[Elected | Deposed], None]


@dataclass(frozen=True, slots=True)
class _Candidacy:
    """Our key, and the epoch it would lead. `over`: it was deposed."""

    key: str
    epoch: int
    keeper: LeaseKeeper
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Election:
    """One candidate. `on_change` hears `Elected` and `Deposed` in turns, in the event loop; it must not raise.

    A process that was paused may run other callbacks before it learns that it lost: ask `epoch()` before every act of a
    leader. It judges by the clock, and tells `on_change` on the spot.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        candidate: str,
        on_change: OnChange,
        *,
        ttl_s: int = 5,
        clock: Clock = boot_clock_s,
    ) -> None:
        self._client = client
        self._prefix = prefix.rstrip("/") + "/"
        self._candidate = candidate
        self._on_change = on_change
        self._ttl_s = ttl_s
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._term: _Candidacy | None = None
        self._left_over: list[int] = []
        self._has_succeeded = False

    def start(self) -> None:
        """Stand for election from now on. Trouble with etcd only means waiting."""
        self._task = asyncio.create_task(self._campaign_forever(), name=f"election {self._prefix}{self._candidate}")

    def epoch(self) -> int | None:
        """The term that this process leads at this moment, or None."""
        if self._term is None:
            return None
        if self._term.keeper.is_valid():
            return self._term.epoch
        self._depose("its lease may have ended")
        return None

    async def stop(self) -> None:
        """Resign: `Deposed` is told at once, and others can lead as soon as etcd has heard it."""
        if self._task is not None:
            self._depose("it stops")
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _campaign_forever(self) -> None:
        while True:
            try:
                await self._clear()
                await self._succeed()
                keeper = await LeaseKeeper.grant(self._client, self._ttl_s, self._clock)
                await self._campaign(keeper)
            except EtcdError as error:
                _log.debug("%s cannot stand for %s: %s", self._candidate, self._prefix, error)
                await asyncio.sleep(_RETRY_S)

    async def _campaign(self, keeper: LeaseKeeper) -> None:
        """One candidacy, from its key to the loss of its lease."""
        key = f"{self._prefix}{keeper.lease_id:016x}"
        why = "it stands anew"
        try:
            put = PutOp(key, self._candidate.encode(), keeper.lease_id)
            revision = (await self._client.txn([CreatedAt(key, 0)], [put])).revision
            why = await self._lead_until_lost(_Candidacy(key, revision, keeper))
        finally:
            self._depose(why)
            if not await keeper.revoke():
                self._left_over.append(keeper.lease_id)

    async def _clear(self) -> None:
        """End the leases of our candidacies that were over while etcd was away.

        A restarted etcd gives each its whole TTL again, and their keys would stand before the new ones of all
        candidates. No other candidate's key is touched: its process may still live. Raises EtcdError.
        """
        while self._left_over:
            with suppress(LeaseLost):
                await self._client.revoke(self._left_over[0])
            del self._left_over[0]

    async def _succeed(self) -> None:
        """End the candidacies of earlier processes of our name, once: killed ones would stand before all others until
        their leases end.

        The youngest process of a name owns it, as with registrations. One that lives after all is deposed, and what it
        orders is of a lower epoch. Raises EtcdError.
        """
        if not self._has_succeeded:
            for item in (await self._client.get_prefix(self._prefix)).items:
                if item.value == self._candidate.encode():
                    await self._client.delete(item.key)
            self._has_succeeded = True

    async def _lead_until_lost(self, ours: _Candidacy) -> str:
        return await first_result(
            ours.keeper.keep_alive(), _expired(ours.keeper), _over(ours), self._wait_to_lead(ours)
        )

    async def _wait_to_lead(self, ours: _Candidacy) -> str:
        """Lead when no older key is left; returns when our own key is gone.

        An old view does no harm: it holds every key older than ours, and later candidates queue behind us.
        """
        created: dict[str, int] = {}
        async for event in PrefixWatch(self._client, self._prefix):
            _apply(created, event)
            if ours.key not in created:
                return "its key is gone"
            if self._term is None and min(created.values()) == ours.epoch:
                self._lead(ours)
        raise AssertionError("a watch never ends")

    def _lead(self, ours: _Candidacy) -> None:
        if ours.over.is_set() or not ours.keeper.is_valid():
            return
        self._term = ours
        _log.info("%s leads %s in epoch %d", self._candidate, self._prefix, ours.epoch)
        self._on_change(Elected(ours.epoch))

    def _depose(self, why: str) -> None:
        if self._term is None:
            return
        term, self._term = self._term, None
        # Later signs of life may revive the lease, but never this candidacy.
        term.over.set()
        _log.warning("%s no longer leads %s, epoch %d: %s", self._candidate, self._prefix, term.epoch, why)
        self._on_change(Deposed(term.epoch))


async def _expired(keeper: LeaseKeeper) -> str:
    await keeper.wait_expired()
    return "its lease may have ended"


async def _over(candidacy: _Candidacy) -> str:
    await candidacy.over.wait()
    return "it was deposed"


def _apply(created: dict[str, int], event: WatchEvent) -> None:
    match event:
        case ResetEvent():
            created.clear()
            created.update((item.key, item.create_revision) for item in event.items)
        case Written():
            created[event.item.key] = event.item.create_revision
        case DeletedEvent():
            created.pop(event.key, None)
