"""Who waits for news from a thread."""

import threading
from typing import Any


class Told:
    """What became of what was sent and of expected regions."""

    def __init__(self) -> None:
        self.news: list[tuple[Any, ...]] = []
        self._changed = threading.Condition()

    def __call__(self, *news: Any) -> None:
        with self._changed:
            self.news.append(news)
            self._changed.notify_all()

    def wait(self, count: int, limit_s: float = 300.0) -> list[tuple[Any, ...]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.news) >= count, limit_s), self.news
            return self.news
