"""Each tenant's quotas and what is left of them: token buckets, checked before any work is spent on a request.

An admitted request reserves its prompt's tokens and its whole `max_tokens` from the tenant's bucket; what it did not
generate is refunded when it ends. So concurrent requests together never exceed the quota, however they end. A bucket
holds one minute's worth and refills evenly. Knows no API key, no queue and no instance.

A request that may run somewhere already (its client resumes it, or names an idempotency key) was perhaps admitted by
another dispatcher, which is gone: it may exceed the quotas, by as much again at most, until the instances were asked.
If one holds it, it stays and counts like any other; if none does, it is a new request, and the quotas hold for it.
"""

from dataclasses import dataclass, replace

from dunlin.messages.door import Quota, Quotas, RejectionCode, Submit, SubmitRejected

MINUTE_S = 60.0
RUNNING_RETRY_S = 1.0
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RateLimitStatus:
    """State of one bucket: `remaining` of `limit` a minute are available now, all of it in `reset_s` seconds."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What is left of a tenant's quotas per minute; None: the tenant has no such quota."""

    requests: RateLimitStatus | None = None
    tokens: RateLimitStatus | None = None


@dataclass(slots=True)
class TokenBucket:
    """Refills by `per_minute`, and holds at most one minute's worth. `level` was available at `at_s`."""

    per_minute: int
    level: float
    at_s: float

    def refill(self, now_s: float) -> None:
        """Add what has accrued since `at_s`."""
        self.level = self._level_at(now_s)
        self.at_s = max(self.at_s, now_s)

    def status(self, now_s: float) -> RateLimitStatus:
        """What is available at `now_s`; the bucket is not changed."""
        level = self._level_at(now_s)
        missing = max(0.0, self.per_minute - level)
        return RateLimitStatus(self.per_minute, max(0, int(level + _ROUNDING)), missing * MINUTE_S / self.per_minute)

    def wait_s(self, amount: int) -> float:
        """Seconds until `amount` is available if no other request draws on the bucket; 0: now."""
        missing = amount - self.level
        return missing * MINUTE_S / self.per_minute if missing > _ROUNDING else 0.0

    def _level_at(self, now_s: float) -> float:
        gained = max(0.0, now_s - self.at_s) * self.per_minute / MINUTE_S
        return min(float(self.per_minute), self.level + gained)


@dataclass(slots=True)
class TenantAccount:
    """One tenant's buckets; None: no such quota. `open` counts its requests that have not ended."""

    quota: Quota
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    open: int = 0

    def refill(self, now_s: float) -> None:
        """Add to the buckets what has accrued."""
        for bucket in (self.requests, self.tokens):
            if bucket is not None:
                bucket.refill(now_s)

    def take(self, tokens: int) -> None:
        """One more request is open, for which so many tokens are reserved."""
        self.open += 1
        self._draw(1, tokens)

    def give_back(self, tokens: int) -> None:
        """The inverse of `take`: the request was not admitted after all."""
        self.open -= 1
        self._draw(-1, -tokens)

    def _draw(self, requests: int, tokens: int) -> None:
        for bucket, amount in ((self.requests, requests), (self.tokens, tokens)):
            if bucket is not None:
                bucket.level = min(float(bucket.per_minute), bucket.level - amount)


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """What an admitted request reserved: `prompt` and `generate` tokens, 0 if its tenant has no token quota.

    `exceeds`: that was more than was left, and it was let in because it may have been admitted elsewhere.
    """

    account: TenantAccount
    prompt: int
    generate: int
    exceeds: bool = False


class TenantQuotas:
    """Owns the accounts by tenant and the reservations by number. Enforces nothing before the first `Quotas`."""

    def __init__(self) -> None:
        self._enforced = False
        self._accounts: dict[str, TenantAccount] = {}
        self._reservations: dict[int, QuotaReservation] = {}

    def replace(self, quotas: Quotas, now_s: float) -> None:
        """Replace all quotas. What was used stays used; a tenant that is no longer listed is refused."""
        self._enforced = True
        before, self._accounts = self._accounts, {}
        for quota in quotas.tenants:
            account = before.get(quota.tenant) or TenantAccount(quota)
            account.quota = quota
            account.requests = _changed(account.requests, quota.requests_per_minute, now_s)
            account.tokens = _changed(account.tokens, quota.tokens_per_minute, now_s)
            self._accounts[quota.tenant] = account

    def cap_max_tokens(self, submit: Submit, most: int) -> Submit:
        """The request with a `max_tokens` that its tenant's quota allows, if its client gave none and there is a limit.

        `most` is the longest sequence that can be held, in tokens; 0 if unknown.
        """
        account = self._accounts.get(submit.tenant)
        if account is None or submit.max_tokens is not None:
            return submit
        quota = account.quota
        if quota.max_tokens is None and quota.tokens_per_minute is None:
            return submit
        limits = [quota.max_tokens] if quota.max_tokens is not None else []
        limits += [most - len(submit.tokens)] if most else []
        if quota.tokens_per_minute is not None:
            limits.append((quota.tokens_per_minute - _call_prompt_tokens(submit)) // submit.call_requests)
        return replace(submit, max_tokens=max(1, min(limits)))

    def refusal(self, submit: Submit, now_s: float) -> SubmitRejected | None:
        """The quota that this request (from `cap_max_tokens`) would exceed; None: it fits."""
        if not self._enforced:
            return None
        account = self._accounts.get(submit.tenant)
        if account is None:
            return SubmitRejected(RejectionCode.FORBIDDEN, f"there is no tenant {submit.tenant!r} any more")
        account.refill(now_s)
        refusal = _exceeds(account, submit)
        return None if submit.may_be_held and _fits_twice(account, submit) else refusal

    def usage(self, tenant: str, now_s: float) -> QuotaUsage:
        """What is left of the tenant's quotas at `now_s`; changes nothing."""
        account = self._accounts.get(tenant)
        if account is None:
            return QuotaUsage()
        return QuotaUsage(_status(account.requests, now_s), _status(account.tokens, now_s))

    def reserve(self, number: int, submit: Submit) -> None:
        """Reserve for a request that `refusal` admitted at the same moment."""
        account = self._accounts.get(submit.tenant)
        if account is None:
            return
        prompt, generate = 0, 0
        if account.tokens is not None:
            prompt, generate = len(submit.tokens), submit.max_tokens or 0
        exceeds = submit.may_be_held and _exceeds(account, submit) is not None
        self._reservations[number] = QuotaReservation(account, prompt, generate, exceeds)
        account.take(prompt + generate)

    def on_not_held(self, number: int, submit: Submit, now_s: float) -> SubmitRejected | None:
        """No instance holds the request, though it may have been admitted elsewhere: it is a new one.

        The quota that it exceeds, which `refusal` let pass; None: it fits.
        """
        reservation = self._reservations.get(number)
        if reservation is None or not reservation.exceeds:
            return None
        account, tokens = reservation.account, reservation.prompt + reservation.generate
        account.give_back(tokens)
        account.refill(now_s)
        refusal = _exceeds(account, submit)
        account.take(tokens)
        self._reservations[number] = replace(reservation, exceeds=refusal is not None)
        return refusal

    def withdraw(self, number: int) -> None:
        """The request is refused after all: return all of its reservation."""
        reservation = self._reservations.pop(number, None)
        if reservation is not None:
            reservation.account.give_back(reservation.prompt + reservation.generate)

    def refund(self, number: int, generated: int, now_s: float) -> None:
        """The request ended after `generated` tokens: return the rest of its reservation, or charge what was more."""
        reservation = self._reservations.pop(number, None)
        if reservation is None:
            return
        reservation.account.open -= 1
        tokens = reservation.account.tokens
        if tokens is not None and reservation.generate:
            tokens.refill(now_s)
            # One that was adopted may have generated more: its first dispatcher chose its limit.
            tokens.level = _within(tokens.per_minute, tokens.level + reservation.generate - generated)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the accounts' open requests are those that have reservations."""
        assert all(account.open >= 0 for account in self._accounts.values())
        for account in self._accounts.values():
            assert account.open == len([one for one in self._reservations.values() if one.account is account])
            for bucket in (account.requests, account.tokens):
                # Below 0 by what was let in beyond it, a minute's worth at most.
                assert bucket is None or -bucket.per_minute - _ROUNDING <= bucket.level <= bucket.per_minute


def _status(bucket: TokenBucket | None, now_s: float) -> RateLimitStatus | None:
    return None if bucket is None else bucket.status(now_s)


def _changed(bucket: TokenBucket | None, per_minute: int | None, now_s: float) -> TokenBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return TokenBucket(per_minute, float(per_minute), now_s)
    bucket.refill(now_s)
    return TokenBucket(per_minute, _within(per_minute, bucket.level), bucket.at_s)


def _within(per_minute: int, level: float) -> float:
    """The level of a bucket: a minute's worth at most, and owing no more than that."""
    return max(-float(per_minute), min(float(per_minute), level))


def _call_prompt_tokens(submit: Submit) -> int:
    """Prompt tokens of all requests of the call."""
    return max(len(submit.tokens), submit.call_tokens)


def _required(submit: Submit) -> tuple[int, int]:
    """(requests, tokens) that must be available: for a call's first request those of the whole call, else its own."""
    if submit.call_index:
        return 1, len(submit.tokens) + (submit.max_tokens or 0)
    return submit.call_requests, _call_prompt_tokens(submit) + submit.call_requests * (submit.max_tokens or 0)


def _exceeds(account: TenantAccount, submit: Submit) -> SubmitRejected | None:
    """The refusal of a request that exceeds its tenant's quotas, or what is left of them now."""
    return _exceeds_quota(account.quota, submit) or _exceeds_remaining(account, submit)


def _fits_twice(account: TenantAccount, submit: Submit) -> bool:
    """Whether it would fit if running requests and what a minute brings were twice as much."""
    requests, tokens = _required(submit)
    running = account.quota.running
    if running is not None and account.open + requests > 2 * running:
        return False
    drawn = ((account.requests, requests), (account.tokens, tokens))
    return all(bucket is None or amount <= bucket.level + bucket.per_minute + _ROUNDING for bucket, amount in drawn)


def _exceeds_quota(quota: Quota, submit: Submit) -> SubmitRejected | None:
    """The refusal of a request that would exceed its tenant's quota even if nothing were used."""
    requests, tokens = _required(submit)
    asked = submit.max_tokens or 0
    most = f"more than tenant {quota.tenant!r} may"
    if quota.max_tokens is not None and asked > quota.max_tokens:
        return SubmitRejected(RejectionCode.INVALID, f"max_tokens is {asked}: {most} ask for, {quota.max_tokens}")
    if quota.tokens_per_minute is not None and tokens > quota.tokens_per_minute:
        text = f"{_call_prompt_tokens(submit)} prompt tokens and max_tokens {asked}"
        each = f" for each of {requests}" if requests > 1 else ""
        return SubmitRejected(
            RejectionCode.INVALID, f"{text}{each} are {most} use in a minute, {quota.tokens_per_minute}"
        )
    for limit, what in ((quota.requests_per_minute, "send in a minute"), (quota.running, "have running at once")):
        if limit is not None and requests > limit:
            return SubmitRejected(RejectionCode.INVALID, f"{requests} requests at once are {most} {what}, {limit}")
    return None


def _exceeds_remaining(account: TenantAccount, submit: Submit) -> SubmitRejected | None:
    """The refusal of a request that fits the quota later; its `retry_after_s` says when."""
    requests, tokens = _required(submit)
    quota = account.quota
    if quota.running is not None and account.open + requests > quota.running:
        text = f"tenant {quota.tenant!r} has {account.open} requests running, of {quota.running} that it may"
        return SubmitRejected(RejectionCode.QUOTA, text, RUNNING_RETRY_S)
    for bucket, amount, what in ((account.requests, requests, "requests"), (account.tokens, tokens, "tokens")):
        wait_s = bucket.wait_s(amount) if bucket is not None else 0.0
        if bucket is not None and wait_s > 0:
            text = f"tenant {quota.tenant!r} may use {bucket.per_minute} {what} a minute"
            left = f"{max(0, int(bucket.level))} are left, {amount} are needed"
            return SubmitRejected(RejectionCode.QUOTA, f"{text}; {left}", wait_s)
    return None
