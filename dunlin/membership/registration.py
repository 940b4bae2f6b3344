"""A registration: one key under a lease, for as long as the process lives.

The process's *incarnation* is the etcd revision of its first registration. It is made in two writes: a placeholder
without incarnation, whose revision is the incarnation, and then the value that carries it. Readers skip the
placeholder, so others learn the incarnation from the record alone. A lost lease never changes it: the same value
returns under a new lease.

Of several processes of one name the youngest owns it, also where its lease ended while it was stopped and an older one
awoke meanwhile and registered again: the youngest takes the key back, and the older one finds itself superseded.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdError, EtcdUnavailable
from dunlin.membership.lease_keeper import LeaseKeeper, first_result
from dunlin.membership.txn import CreatedAt, GetOp, ModifiedAt, PutOp

_log = logging.getLogger(__name__)

# Makes the bytes to store; incarnation 0 asks for the placeholder.
ValueFor = Callable[[int], bytes]
# Of stored bytes; 0 for a placeholder, None for what cannot be read.
IncarnationOf = Callable[[bytes], int | None]

_RETRY_S = 0.2


class RegistrationState(Enum):
    """REGISTERED: the record surely stands. DEGRADED: it may be gone; the process works on and tries to return.

    SUPERSEDED: a newer process took the key; this one will not come back under its name. STOPPED: it left by itself.
    """

    STARTING = "starting"
    REGISTERED = "registered"
    DEGRADED = "degraded"
    SUPERSEDED = "superseded"
    STOPPED = "stopped"


OnState = Callable[[RegistrationState, str], None]


class _Superseded(Exception):
    """The key holds the value of a younger process, or one that cannot be read."""


class Registration:
    """Owns one key of etcd. `start` may fail; after it nothing raises: trouble is a state, told to `on_state`.

    `on_state` is called in the event loop with the state and why it was entered; it must not raise.
    """

    def __init__(
        self,
        client: EtcdClient,
        key: str,
        value_for: ValueFor,
        incarnation_of: IncarnationOf,
        *,
        ttl_s: int = 5,
        on_state: OnState | None = None,
    ) -> None:
        self.state = RegistrationState.STARTING
        self.incarnation = 0
        self._client = client
        self._key = key
        self._value_for = value_for
        self._incarnation_of = incarnation_of
        self._ttl_s = ttl_s
        self._on_state = on_state
        self._task: asyncio.Task[None] | None = None
        self._keeper: LeaseKeeper | None = None

    async def start(self, within_s: float = 10.0) -> int:
        """Register for the first time and return the incarnation; from then on a task keeps the key alive.

        Raises EtcdUnavailable when etcd cannot be reached within `within_s`, EtcdError when it refuses.
        """
        keeper = await self._first_within(within_s)
        self._enter_state(RegistrationState.REGISTERED, f"incarnation {self.incarnation}")
        self._task = asyncio.create_task(self._keep_registered(keeper), name=f"registration of {self._key}")
        return self.incarnation

    async def stop(self) -> None:
        """Leave: the key is gone on return if etcd answers within a second, else when its lease ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._keeper is not None:
            await self._keeper.revoke()
        if self.state is not RegistrationState.SUPERSEDED:
            self._enter_state(RegistrationState.STOPPED, "left")

    async def _first_within(self, within_s: float) -> LeaseKeeper:
        last: EtcdUnavailable | None = None
        try:
            async with asyncio.timeout(within_s) as limit:
                while True:
                    try:
                        await self._authenticate(limit)
                        return await self._first()
                    except EtcdUnavailable as away:
                        last = away
                        await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise EtcdUnavailable(f"could not register {self._key} within {within_s:g} s: {last}") from last

    async def _authenticate(self, limit: asyncio.Timeout) -> None:
        """What a token takes does not count towards the limit: etcd is there, and hashes other processes' passwords."""
        loop, until_s = asyncio.get_running_loop(), limit.when()
        assert until_s is not None
        since_s = loop.time()
        limit.reschedule(None)
        try:
            await self._client.authenticate()
            until_s += loop.time() - since_s
        finally:
            limit.reschedule(until_s)

    async def _first(self) -> LeaseKeeper:
        # Unconditional: the youngest process of a name owns it, for the older one may be dead and its lease not yet.
        keeper = await self._lease()
        revision = await self._client.put(self._key, self._value_for(0), keeper.lease_id)
        final = PutOp(self._key, self._value_for(revision), keeper.lease_id)
        written = await self._client.txn([ModifiedAt(self._key, revision)], [final])
        if not written.succeeded:
            raise EtcdError(f"{self._key} changed while this process registered: is another one of that name running?")
        self.incarnation = revision
        return keeper

    async def _lease(self) -> LeaseKeeper:
        self._keeper = await LeaseKeeper.grant(self._client, self._ttl_s)
        return self._keeper

    async def _keep_registered(self, keeper: LeaseKeeper | None) -> None:
        """Keep the key, and bring it back when it is lost."""
        try:
            while True:
                if keeper is not None:
                    self._enter_state(RegistrationState.DEGRADED, await self._kept(keeper))
                keeper = await self._register_again()
        except _Superseded as taken:
            self._enter_state(RegistrationState.SUPERSEDED, str(taken))

    async def _kept(self, keeper: LeaseKeeper) -> str:
        """Keep the lease; returns why it or the key is gone."""
        return await first_result(keeper.keep_alive(), self._watch_key(keeper))

    async def _watch_key(self, keeper: LeaseKeeper) -> str:
        """Look after the key about once per TTL, and tell when the lease is in doubt; returns when the key is gone.

        A live lease does not prove the key: it may have been deleted, or written by another process of this name.
        """
        ours = self._value_for(self.incarnation)
        while True:
            await asyncio.sleep(self._ttl_s / 2)
            self._judge(keeper)
            try:
                item = await self._client.get(self._key)
            except EtcdError:
                self._judge(keeper)
                continue
            if item is None:
                return "the key was deleted"
            if item.value != ours:
                return self._taken_by_older(item.value)

    def _taken_by_older(self, value: bytes) -> str:
        """Why the key is not ours though it should be. Raises _Superseded where a younger process took it.

        A placeholder is of a younger one: it is written by first registrations alone.
        """
        other = self._incarnation_of(value)
        if other is None or not 0 < other < self.incarnation:
            raise _Superseded(f"another process registered as {self._key}")
        return f"an older process, incarnation {other}, registered again"

    def _judge(self, keeper: LeaseKeeper) -> None:
        if not keeper.is_valid():
            self._enter_state(RegistrationState.DEGRADED, "etcd does not answer; the lease may have ended")
        elif self.state is RegistrationState.DEGRADED:
            self._enter_state(RegistrationState.REGISTERED, "etcd answers again; the lease survived")

    async def _register_again(self) -> LeaseKeeper | None:
        """Write the same value under a new lease. None when etcd was away: try again."""
        try:
            keeper = await self._lease()
            await self._write_again(keeper)
        except EtcdError as error:
            _log.debug("%s not registered again yet: %s", self._key, error)
            await asyncio.sleep(_RETRY_S)
            return None
        self._enter_state(RegistrationState.REGISTERED, f"again, still incarnation {self.incarnation}")
        return keeper

    async def _write_again(self, keeper: LeaseKeeper) -> None:
        put = PutOp(self._key, self._value_for(self.incarnation), keeper.lease_id)
        absent = await self._client.txn([CreatedAt(self._key, 0)], [put], [GetOp(self._key)])
        if absent.succeeded:
            return
        found = absent.reads[0][0]
        if found.value != put.value:
            why = self._taken_by_older(found.value)
            _log.warning("%s is taken back: %s", self._key, why)
        # Of an older process, or ours under an older lease, which would take the key with it.
        moved = await self._client.txn([ModifiedAt(self._key, found.mod_revision)], [put])
        if not moved.succeeded:
            raise EtcdError(f"{self._key} changed meanwhile")

    def _enter_state(self, state: RegistrationState, why: str) -> None:
        if state is self.state:
            return
        self.state = state
        level = logging.INFO if state in (RegistrationState.REGISTERED, RegistrationState.STOPPED) else logging.WARNING
        _log.log(level, "%s is %s: %s", self._key, state.value, why)
        if self._on_state is not None:
            self._on_state(state, why)
