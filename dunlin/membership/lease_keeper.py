"""One lease kept alive, and how long it surely still holds.

Validity is judged by this machine's clock alone: a lease holds for its TTL from the moment the last *answered* sign of
life was sent, never from the answer. So a process that slept knows by itself that it may have lost its lease.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine

from dunlin.membership.client import EtcdClient, Lease
from dunlin.membership.errors import EtcdError, LeaseLost

Clock = Callable[[], float]

# Of a TTL: signs of life are sent this often, and again this soon after one without an answer.
_KEEP_ALIVE_SHARE = 1 / 3
_RETRY_SHARE = 1 / 20
# Clocks may drift apart a little; our own end of the lease must come first.
_DRIFT_SHARE = 0.02
_REVOKE_TIMEOUT_S = 1.0


def boot_clock_s() -> float:
    """Seconds that also count while the machine is suspended, which `time.monotonic` does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def first_result(*ways: Coroutine[None, None, str]) -> str:
    """Run all `ways` at once; returns the result of the first that ends (of several, the first in order).

    The others are cancelled.
    """
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()


class LeaseKeeper:
    """Owns one lease. `valid()` is the question to ask before acting on anything that the lease stands for."""

    def __init__(self, client: EtcdClient, lease: Lease, sent_s: float, clock: Clock = boot_clock_s) -> None:
        self.lease_id = lease.lease_id
        self.valid_until_s = 0.0
        self._client = client
        self._ttl_s = lease.ttl_s
        self._clock = clock
        self._confirm(sent_s, lease.ttl_s)

    @staticmethod
    async def grant(client: EtcdClient, ttl_s: int, clock: Clock = boot_clock_s) -> "LeaseKeeper":
        """A new lease under a keeper. Raises EtcdError."""
        sent_s = clock()
        return LeaseKeeper(client, await client.grant(ttl_s), sent_s, clock)

    def is_valid(self) -> bool:
        """Whether the lease surely holds at this moment."""
        return self._clock() < self.valid_until_s

    async def keep_alive(self) -> str:
        """Send signs of life until the lease is gone; returns why. Raises no EtcdError: silence is retried for ever."""
        while True:
            try:
                await self.extend()
                await asyncio.sleep(self._ttl_s * _KEEP_ALIVE_SHARE)
            except LeaseLost as lost:
                self.valid_until_s = 0.0
                return str(lost)
            except EtcdError:
                await asyncio.sleep(self._ttl_s * _RETRY_SHARE)

    async def extend(self) -> None:
        """One sign of life. Raises EtcdError; LeaseLost when there is nothing left to extend."""
        sent_s = self._clock()
        self._confirm(sent_s, await self._client.keep_alive(self.lease_id, self._ttl_s * _KEEP_ALIVE_SHARE))

    async def wait_expired(self) -> None:
        """Return at the first moment when the lease does not surely hold."""
        while self.is_valid():  # noqa: ASYNC110 (time itself is awaited; each sign of life moves the end further away)
            await asyncio.sleep(self.valid_until_s - self._clock())

    async def revoke(self) -> bool:
        """End the lease now if etcd answers, else leave it to its TTL. Its holder has nothing to say from here on.

        Returns whether the lease surely is gone.
        """
        self.valid_until_s = 0.0
        try:
            async with asyncio.timeout(_REVOKE_TIMEOUT_S):
                await self._client.revoke(self.lease_id)
        except LeaseLost:
            return True
        except (EtcdError, TimeoutError):
            return False
        return True

    def _confirm(self, sent_s: float, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self.valid_until_s = sent_s + ttl_s * (1 - _DRIFT_SHARE)
