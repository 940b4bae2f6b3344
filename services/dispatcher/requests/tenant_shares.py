"""What each tenant has had of the batch work dispatched here, by weight: whose request is next. Pure; knows no request.

Fair queuing as in "Fairness in Serving Large Language Models" (VTC: Sheng et al., OSDI 2024). A tenant's *tag* grows by
the tokens of each request that is dispatched for it, over its weight; the tenant with the lowest tag is next. One that
comes back begins no lower than the lowest tag of those that wait: while it had nothing queued it saved nothing up.

A request is charged when it is dispatched: its prompt and about as many tokens as the tenant's last ones generated
(VTC's length prediction). What it really had settles the difference when it ends.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_WEIGHT = 1
FIRST_GUESS_TOKENS = 256
"""Generated tokens expected of a tenant's request before one has ended, if it may generate so many."""
SAMPLES_KEPT = 32
"""The expectation averages over about so many of a tenant's last requests."""
MOST_IDLE_TENANTS = 1024
"""Tenants that are remembered only because they are ahead of those that wait; of more the least ahead are forgotten."""


@dataclass(slots=True)
class TenantShare:
    """One tenant's account.

    `tag`: tokens charged over weight, on the scale of all tags. `turn`: its order among equals while requests of it are
    queued; 0: none is. `in_flight` requests are charged and not settled. `settled` and `generated_mean` make the
    expectation.
    """

    tag: float
    turn: int = 0
    in_flight: int = 0
    settled: int = 0
    generated_mean: float = float(FIRST_GUESS_TOKENS)


class TenantShares:
    """Owns the tags of the tenants that have requests queued or charged, or are ahead of those that have."""

    def __init__(self) -> None:
        self._weights: Mapping[str, int] = {}
        self._shares: dict[str, TenantShare] = {}
        self._queued: list[tuple[float, int, str]] = []
        self._last_tag = 0.0
        self._turns = 0
        self._most_kept = 2 * MOST_IDLE_TENANTS

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def lowest_tag(self) -> float:
        """The lowest tag of the tenants with queued requests, or the one of the last that had some."""
        return self._queued[0][0] if self._queued else self._last_tag

    @property
    def in_turn(self) -> list[tuple[float, int, str]]:
        """(tag, order among equals, tenant) of those with queued requests, the next one first. Not to be changed."""
        return self._queued

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Replace all weights: what is charged from now on counts by them. A tenant that is not listed has 1."""
        self._weights = weights

    def weight(self, tenant: str) -> int:
        """The tenant's weight."""
        return self._weights.get(tenant, DEFAULT_WEIGHT)

    def expected_tokens(self, tenant: str, prompt: int, max_tokens: int | None) -> int:
        """Tokens that a request is charged with when it is dispatched; `max_tokens` as its client gave it."""
        share = self._shares.get(tenant)
        generated = FIRST_GUESS_TOKENS if share is None else round(share.generated_mean)
        return prompt + (generated if max_tokens is None else min(generated, max_tokens))

    def begin(self, tenant: str) -> None:
        """The tenant has a queued request, and had none."""
        share = self._share(tenant)
        self._turns += 1
        share.tag, share.turn = max(share.tag, self.lowest_tag), self._turns
        insort(self._queued, (share.tag, share.turn, tenant))

    def end(self, tenant: str) -> None:
        """The tenant has no queued request any more."""
        share = self._shares[tenant]
        self._take_out(tenant, share)
        share.turn = 0
        if not self._queued:
            self._last_tag = share.tag
        self._forget_if_level(tenant, share)

    def charge(self, tenant: str, tokens: int) -> None:
        """A request of the tenant is dispatched for the first time, with so many `expected_tokens`."""
        share = self._share(tenant)
        share.in_flight += 1
        self._add(tenant, share, tokens)

    def settle(self, tenant: str, charged: int, prompt: int, generated: int) -> None:
        """A request that was charged with `charged` tokens has ended."""
        share = self._shares[tenant]
        share.in_flight -= 1
        share.settled = min(share.settled + 1, SAMPLES_KEPT)
        share.generated_mean += (generated - share.generated_mean) / share.settled
        self._add(tenant, share, prompt + generated - charged)
        self._forget_if_level(tenant, share)

    def check_integrity(self, queued: Mapping[str, int], in_flight: Mapping[str, int]) -> None:
        """Raise AssertionError unless the accounts are those of so many queued and charged requests by tenant."""
        assert self._queued == sorted((one.tag, one.turn, name) for name, one in self._shares.items() if one.turn)
        assert {tenant for _, _, tenant in self._queued} == {tenant for tenant, count in queued.items() if count}
        assert {name: one.in_flight for name, one in self._shares.items() if one.in_flight} == dict(in_flight)
        assert len(self._shares) <= self._most_kept

    def _share(self, tenant: str) -> TenantShare:
        share = self._shares.get(tenant)
        if share is None:
            if len(self._shares) >= self._most_kept:
                self._forget_idle()
            share = self._shares[tenant] = TenantShare(self.lowest_tag)
        return share

    def _add(self, tenant: str, share: TenantShare, tokens: int) -> None:
        if share.turn:
            self._take_out(tenant, share)
        share.tag += tokens / self.weight(tenant)
        if share.turn:
            insort(self._queued, (share.tag, share.turn, tenant))

    def _take_out(self, tenant: str, share: TenantShare) -> None:
        del self._queued[bisect_left(self._queued, (share.tag, share.turn, tenant))]

    def _forget_if_level(self, tenant: str, share: TenantShare) -> None:
        """Forget a tenant that would come back to the same tag if it were forgotten."""
        if not share.turn and not share.in_flight and share.tag <= self.lowest_tag:
            del self._shares[tenant]

    def _forget_idle(self) -> None:
        """Forget tenants without requests, the least ahead first; looked through again when as many have come."""
        idle = [(one.tag, name) for name, one in self._shares.items() if not one.turn and not one.in_flight]
        for _, name in sorted(idle)[: max(0, len(idle) - MOST_IDLE_TENANTS)]:
            del self._shares[name]
        self._most_kept = len(self._shares) + MOST_IDLE_TENANTS
