"""The queued requests of one class, in the order in which they are dispatched. Knows no instance."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from itertools import chain
from operator import attrgetter
from typing import Protocol

from services.dispatcher.requests.request import Request
from services.dispatcher.requests.tenant_shares import TenantShares

_NUMBER = attrgetter("number")


class QueueOrder(Protocol):
    """The requests that were never dispatched, in the order in which they will be."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def add(self, request: Request) -> None:
        """Queue a new request: the youngest."""
        ...

    def discard(self, request: Request) -> bool:
        """Take a request out; False if it is not there."""
        ...


class ArrivalOrder:
    """The oldest first: of the interactive class."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        """See `QueueOrder`."""
        self._requests[request.number] = request

    def discard(self, request: Request) -> bool:
        """See `QueueOrder`."""
        return self._requests.pop(request.number, None) is not None


class ShortFirstOrder:
    """Prompts of more than `long_tokens` after all others, the oldest of either first: of the interactive class."""

    def __init__(self, long_tokens: int) -> None:
        self._long_tokens = long_tokens
        self._short, self._long = ArrivalOrder(), ArrivalOrder()

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    def __iter__(self) -> Iterator[Request]:
        return chain(self._short, self._long)

    def add(self, request: Request) -> None:
        """See `QueueOrder`."""
        self._of(request).add(request)

    def discard(self, request: Request) -> bool:
        """See `QueueOrder`."""
        return self._of(request).discard(request)

    def _of(self, request: Request) -> ArrivalOrder:
        return self._long if request.prompt_tokens > self._long_tokens else self._short


def fresh_order(policy: str, long_tokens: int) -> QueueOrder:
    """The order of new interactive requests by `dispatcher.placement.queue_policy`. `long_tokens` 0: none is long."""
    return ShortFirstOrder(long_tokens) if policy == "short_first" and long_tokens > 0 else ArrivalOrder()


class TenantOrder:
    """Tenants in turn by their shares, each tenant's oldest request first: of the batch class."""

    def __init__(self, shares: TenantShares) -> None:
        self._shares = shares
        self._by_tenant: dict[str, ArrivalOrder] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        """The order if all are dispatched one after the other, each with the tokens expected of it."""
        if len(self._by_tenant) == 1:
            yield from next(iter(self._by_tenant.values()))
            return
        shares = self._shares
        begun: list[tuple[float, int, str, Iterator[Request]]] = []
        others = iter(shares.in_turn)
        other = next(others, None)
        while begun or other is not None:
            if other is not None and (not begun or other < begun[0][:3]):
                heappush(begun, (*other, iter(self._by_tenant[other[2]])))
                other = next(others, None)
            tag, order, tenant, requests = begun[0]
            request = next(requests, None)
            if request is None:
                heappop(begun)
                continue
            yield request
            heapreplace(begun, (tag + self._tokens(request) / shares.weight(tenant), order, tenant, requests))

    def add(self, request: Request) -> None:
        """See `QueueOrder`."""
        tenant = request.submit.tenant
        if tenant not in self._by_tenant:
            self._by_tenant[tenant] = ArrivalOrder()
            self._shares.begin(tenant)
        self._by_tenant[tenant].add(request)
        self._count += 1

    def discard(self, request: Request) -> bool:
        """See `QueueOrder`."""
        tenant = request.submit.tenant
        requests = self._by_tenant.get(tenant)
        if requests is None or not requests.discard(request):
            return False
        self._count -= 1
        if not requests:
            del self._by_tenant[tenant]
            self._shares.end(tenant)
        return True

    def counts(self) -> dict[str, int]:
        """How many requests of each tenant there are."""
        return {tenant: len(requests) for tenant, requests in self._by_tenant.items()}

    def tenant_part(self, tenant: str) -> tuple[int, int]:
        """(requests of the tenant, tenants that have one or would with this one)."""
        own = self._by_tenant.get(tenant, ())
        return len(own), len(self._by_tenant) + (not own)

    def _tokens(self, request: Request) -> int:
        submit = request.submit
        return self._shares.expected_tokens(submit.tenant, len(submit.tokens), submit.max_tokens)


class RequestQueue:
    """Owns the order: requests that were dispatched before, and batch ones that rose, precede new ones, the oldest
    first; new ones are in the order `fresh`. `count`: of all, for the look after every message.
    """

    def __init__(self, fresh: QueueOrder) -> None:
        self.count = 0
        self._requeued: list[Request] = []
        self._fresh = fresh

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Request]:
        return chain(self._requeued, self._fresh)

    @property
    def requeued(self) -> list[Request]:
        """Those that were dispatched before or rose, oldest first."""
        return self._requeued

    def add(self, request: Request) -> None:
        """Queue a new request: the youngest."""
        self.count += 1
        self._fresh.add(request)

    def requeue(self, request: Request) -> None:
        """Queue a request that was dispatched before, or rose."""
        self.count += 1
        insort(self._requeued, request, key=_NUMBER)

    def remove(self, request: Request) -> None:
        """Take a queued request out. Raises ValueError: it is not queued."""
        if not self._fresh.discard(request):
            self._requeued.remove(request)
        self.count -= 1
