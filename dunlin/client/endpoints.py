"""The dispatchers of one cluster, and which of them to ask next. Knows no connection."""

from collections.abc import Sequence

from dunlin.client.errors import DunlinError


class Endpoints:
    """`host:port`s in order of preference; all streams of a client move on together. Threads may share it."""

    def __init__(self, given: str | Sequence[str]) -> None:
        several = given.split(",") if isinstance(given, str) else given
        self.all = tuple(dict.fromkeys(one.strip() for one in several if one.strip()))
        if not self.all:
            raise DunlinError("no endpoint is given: name at least one dispatcher as HOST:PORT")
        self._index = 0

    @property
    def current(self) -> str:
        """The dispatcher that is asked first."""
        return self.all[self._index]

    def mark_failed(self, endpoint: str) -> None:
        """`endpoint` failed: the next call goes to the one after it. A late failure of another one is ignored."""
        if endpoint == self.current:
            self._index = (self._index + 1) % len(self.all)

    def failover_order(self) -> tuple[str, ...]:
        """All of them once, from the current one on."""
        return self.all[self._index :] + self.all[: self._index]
