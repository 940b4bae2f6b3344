"""How a door says no, for whatever reason: an error that both public doors translate. Knows neither HTTP nor gRPC."""

from dunlin.messages.door import Rejection

STOPPING = "the dispatcher is stopping"


class DoorError(Exception):
    """A request that was not taken. `field` names what is wrong with it, if it is the client's."""

    def __init__(self, code: Rejection, detail: str, field: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s
