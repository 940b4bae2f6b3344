"""The errors of refused requests, which both public doors translate. Knows neither HTTP nor gRPC."""

from dunlin.messages.door import RejectionCode

STOPPING_TEXT = "the dispatcher is stopping"


def too_long_text(prompt_tokens: int, max_tokens: int | None, most: int, is_least: bool = False) -> str:
    """The text for a prompt that is too long where a sequence may have `most` tokens.

    Clients search it for "maximum context length". `is_least`: the prompt was not tokenised, `prompt_tokens` is a lower
    bound.
    """
    limit = f"This model's maximum context length is {most} tokens"
    if max_tokens is None:
        count = f"at least {prompt_tokens}" if is_least else f"{prompt_tokens}"
        return f"{limit}, and the prompt alone has {count}: shorten it, so that something can be generated"
    asked = f"the prompt has {prompt_tokens} and max_tokens asks for {max_tokens} more"
    return f"{limit}, but {asked}, {prompt_tokens + max_tokens} in all: shorten the prompt or lower max_tokens"


class DoorError(Exception):
    """A request that was refused. `field` names the field at fault; empty if the fault is not in the request."""

    def __init__(self, code: RejectionCode, detail: str, field: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """The error in one word, for metrics and the access log."""
        return self.code.name.lower()


class MalformedRequest(DoorError):
    """A body that cannot be parsed as a request."""

    def __init__(self, detail: str) -> None:
        super().__init__(RejectionCode.INVALID, detail)

    @property
    def kind(self) -> str:
        """See `DoorError`."""
        return "malformed"
