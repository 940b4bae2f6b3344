"""The dispatchers of one cluster, and which of them gets the next call. Knows no connection."""

from collections.abc import Sequence

from dunlin.client.errors import DunlinError


class Endpoints:
    """Owns the `host:port`s in order of preference and the current one, which all streams of a client use.

    Threads may share it.

    Raises:
        DunlinError: no endpoint is given.
    """

    def __init__(self, given: str | Sequence[str]) -> None:
        listed = given.split(",") if isinstance(given, str) else given
        self.all = tuple(dict.fromkeys(one.strip() for one in listed if one.strip()))
        if not self.all:
            raise DunlinError("no endpoint is given: name at least one dispatcher as HOST:PORT")
        self._index = 0

    @property
    def current(self) -> str:
        """The dispatcher that gets the next call."""
        return self.all[self._index]

    def mark_failed(self, endpoint: str) -> None:
        """`endpoint` failed: the one after it is current. No effect if another one is current already."""
        if endpoint == self.current:
            self._index = (self._index + 1) % len(self.all)

    def failover_order(self) -> tuple[str, ...]:
        """Every endpoint once, from the current one on."""
        return self.all[self._index :] + self.all[: self._index]
