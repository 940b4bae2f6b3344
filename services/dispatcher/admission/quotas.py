"""What each tenant may use, and has used: decided before anything is spent on a request.

A request takes its prompt's tokens and all that it may generate out of the tenant's bucket when it is admitted; what it
did not generate goes back when it ends. So the sum over concurrent requests never exceeds the quota, whatever comes of
them. A bucket holds one minute's worth and fills evenly. Knows no key, no queue and no instance.
"""

from dataclasses import dataclass, replace

from dunlin.messages.door import Quota, Quotas, RejectionCode, Submit, SubmitRejected

MINUTE_S = 60.0
RUNNING_RETRY_S = 1.0
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RateLimitStatus:
    """Of `limit` a minute `remaining` can be taken now, and all of it in `reset_s`, if nothing is taken before."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a tenant has left of its quotas per minute; None: it has no such quota."""

    requests: RateLimitStatus | None = None
    tokens: RateLimitStatus | None = None


@dataclass(slots=True)
class TokenBucket:
    """So many a minute, at most a minute's worth at once. `level` is what could be taken at `at_s`."""

    per_minute: int
    level: float
    at_s: float

    def refill(self, now_s: float) -> None:
        """Time has passed."""
        self.level = self._level_at(now_s)
        self.at_s = max(self.at_s, now_s)

    def status(self, now_s: float) -> RateLimitStatus:
        """How it stands, without filling it."""
        level = self._level_at(now_s)
        missing = max(0.0, self.per_minute - level)
        return RateLimitStatus(self.per_minute, max(0, int(level + _ROUNDING)), missing * MINUTE_S / self.per_minute)

    def wait_s(self, amount: int) -> float:
        """Seconds until `amount` can be taken, if nobody takes anything before; 0: now."""
        missing = amount - self.level
        return missing * MINUTE_S / self.per_minute if missing > _ROUNDING else 0.0

    def _level_at(self, now_s: float) -> float:
        gained = max(0.0, now_s - self.at_s) * self.per_minute / MINUTE_S
        return min(float(self.per_minute), self.level + gained)


@dataclass(slots=True)
class TenantAccount:
    """One tenant's use. `open` counts its requests that have not ended."""

    quota: Quota
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    open: int = 0


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """What an admitted request took: `generate` tokens beside its prompt, 0 if tokens are not counted."""

    account: TenantAccount
    generate: int


class TenantQuotas:
    """Owns the accounts and the holds. Enforces nothing before the first `Quotas`."""

    def __init__(self) -> None:
        self._enforced = False
        self._accounts: dict[str, TenantAccount] = {}
        self._reservations: dict[int, QuotaReservation] = {}

    def replace(self, quotas: Quotas, now_s: float) -> None:
        """New quotas for all. What was used stays used; a tenant that is gone gets nothing more."""
        self._enforced = True
        before, self._accounts = self._accounts, {}
        for quota in quotas.tenants:
            account = before.get(quota.tenant) or TenantAccount(quota)
            account.quota = quota
            account.requests = _changed(account.requests, quota.requests_per_minute, now_s)
            account.tokens = _changed(account.tokens, quota.tokens_per_minute, now_s)
            self._accounts[quota.tenant] = account

    def cap_max_tokens(self, submit: Submit, most: int) -> Submit:
        """The request with the most that it may generate, where its client left that open and its tenant has a limit.

        `most` is the longest sequence that can be held, 0 if unknown.
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
            limits.append((quota.tokens_per_minute - _prompts(submit)) // submit.call_requests)
        return replace(submit, max_tokens=max(1, min(limits)))

    def refusal(self, submit: Submit, now_s: float) -> SubmitRejected | None:
        """Why this (`bounded`) request is more than its tenant may use; None: it is not."""
        if not self._enforced:
            return None
        account = self._accounts.get(submit.tenant)
        if account is None:
            return SubmitRejected(RejectionCode.FORBIDDEN, f"there is no tenant {submit.tenant!r} any more")
        for bucket in (account.requests, account.tokens):
            if bucket is not None:
                bucket.refill(now_s)
        return _too_much(account.quota, submit) or _too_soon(account, submit)

    def usage(self, tenant: str, now_s: float) -> QuotaUsage:
        """What the tenant has left; changes nothing."""
        account = self._accounts.get(tenant)
        if account is None:
            return QuotaUsage()
        return QuotaUsage(_allowance(account.requests, now_s), _allowance(account.tokens, now_s))

    def reserve(self, number: int, submit: Submit) -> None:
        """Take for a request that `refusal` had nothing against, at the same moment."""
        account = self._accounts.get(submit.tenant)
        if account is None:
            return
        generate = 0
        if account.requests is not None:
            account.requests.level -= 1
        if account.tokens is not None:
            generate = submit.max_tokens or 0
            account.tokens.level -= len(submit.tokens) + generate
        account.open += 1
        self._reservations[number] = QuotaReservation(account, generate)

    def refund(self, number: int, generated: int, now_s: float) -> None:
        """The request ended with so many tokens: the rest of what it took goes back."""
        hold = self._reservations.pop(number, None)
        if hold is None:
            return
        hold.account.open -= 1
        tokens = hold.account.tokens
        if tokens is not None and hold.generate:
            tokens.refill(now_s)
            tokens.level = min(float(tokens.per_minute), tokens.level + max(0, hold.generate - generated))

    def check_integrity(self) -> None:
        """Raise AssertionError unless open requests and holds tell the same story."""
        assert all(account.open >= 0 for account in self._accounts.values())
        for account in self._accounts.values():
            assert account.open == len([hold for hold in self._reservations.values() if hold.account is account])
            for bucket in (account.requests, account.tokens):
                assert bucket is None or -_ROUNDING <= bucket.level <= bucket.per_minute


def _allowance(bucket: TokenBucket | None, now_s: float) -> RateLimitStatus | None:
    return None if bucket is None else bucket.status(now_s)


def _changed(bucket: TokenBucket | None, per_minute: int | None, now_s: float) -> TokenBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return TokenBucket(per_minute, float(per_minute), now_s)
    bucket.refill(now_s)
    return TokenBucket(per_minute, min(float(per_minute), bucket.level), bucket.at_s)


def _prompts(submit: Submit) -> int:
    """Prompt tokens of the whole call."""
    return max(len(submit.tokens), submit.call_tokens)


def _wanted(submit: Submit) -> tuple[int, int]:
    """Requests and tokens to be had: for the first of a call what all of it takes, for the others their own."""
    if submit.call_index:
        return 1, len(submit.tokens) + (submit.max_tokens or 0)
    return submit.call_requests, _prompts(submit) + submit.call_requests * (submit.max_tokens or 0)


def _too_much(quota: Quota, submit: Submit) -> SubmitRejected | None:
    """What waiting does not help."""
    requests, tokens = _wanted(submit)
    asked = submit.max_tokens or 0
    most = f"more than tenant {quota.tenant!r} may"
    if quota.max_tokens is not None and asked > quota.max_tokens:
        return SubmitRejected(RejectionCode.INVALID, f"max_tokens is {asked}: {most} ask for, {quota.max_tokens}")
    if quota.tokens_per_minute is not None and tokens > quota.tokens_per_minute:
        text = f"{_prompts(submit)} prompt tokens and max_tokens {asked}"
        each = f" for each of {requests}" if requests > 1 else ""
        return SubmitRejected(
            RejectionCode.INVALID, f"{text}{each} are {most} use in a minute, {quota.tokens_per_minute}"
        )
    for limit, what in ((quota.requests_per_minute, "send in a minute"), (quota.running, "have running at once")):
        if limit is not None and requests > limit:
            return SubmitRejected(RejectionCode.INVALID, f"{requests} requests at once are {most} {what}, {limit}")
    return None


def _too_soon(account: TenantAccount, submit: Submit) -> SubmitRejected | None:
    """What can be asked again later."""
    requests, tokens = _wanted(submit)
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
