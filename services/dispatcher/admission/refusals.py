"""How a door says no, for whatever reason: an error that both public doors translate. Knows neither HTTP nor gRPC."""

from dunlin.messages.door import RejectionCode

STOPPING_TEXT = "the dispatcher is stopping"


def too_long_text(prompt_tokens: int, max_tokens: int | None, most: int, is_least: bool = False) -> str:
    """Why a prompt is refused where a sequence may have `most` tokens. Clients look for "maximum context length".

    `is_least`: it was not tokenised, and has so many or more.
    """
    limit = f"This model's maximum context length is {most} tokens"
    if max_tokens is None:
        count = f"at least {prompt_tokens}" if is_least else f"{prompt_tokens}"
        return f"{limit}, and the prompt alone has {count}: shorten it, so that something can be generated"
    asked = f"the prompt has {prompt_tokens} and max_tokens asks for {max_tokens} more"
    return f"{limit}, but {asked}, {prompt_tokens + max_tokens} in all: shorten the prompt or lower max_tokens"


class DoorError(Exception):
    """A request that was not taken. `field` names what is wrong with it, if it is the client's."""

    def __init__(self, code: RejectionCode, detail: str, field: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """What is wrong in one word, for metrics and the access log."""
        return self.code.name.lower()


class MalformedRequest(DoorError):
    """Bytes that are no request at all."""

    def __init__(self, detail: str) -> None:
        super().__init__(RejectionCode.INVALID, detail)

    @property
    def kind(self) -> str:
        """See `DoorError`."""
        return "malformed"
