"""The state of a tenant's quotas as the headers that OpenAI's clients read."""

from services.dispatcher.admission.quotas import QuotaUsage, RateLimitStatus


def rate_limit_headers(usage: QuotaUsage) -> dict[str, str]:
    """The `x-ratelimit-*` headers of each quota per minute that the tenant has."""
    found: dict[str, str] = {}
    for name, status in (("requests", usage.requests), ("tokens", usage.tokens)):
        if status is not None:
            found |= _headers(name, status)
    return found


def _headers(name: str, status: RateLimitStatus) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{name}": str(status.limit),
        f"x-ratelimit-remaining-{name}": str(status.remaining),
        f"x-ratelimit-reset-{name}": format_duration(status.reset_s),
    }


def format_duration(seconds: float) -> str:
    """A duration as OpenAI writes it: 17ms, 1.5s, 6m0s."""
    if 0 < seconds < 1:
        return f"{max(1, int(seconds * 1000))}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"
