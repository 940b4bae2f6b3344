"""Lets tools ask a core: each question comes from an address of its own and gets one answer. Knows no message."""

import asyncio
import itertools
from typing import TypeVar

from dunlin.effects import Address, Message
from dunlin.runtime.core_host import CoreHost

R = TypeVar("R")


class ReplyOutlet:
    """An outlet for a single message."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def send(self, message: Message) -> bool:
        """Keep the first message."""
        if not self.answer.done():
            self.answer.set_result(message)
        return True

    def close(self, reason: str) -> None:
        """Cancel the wait: no answer will come."""
        self.answer.cancel()


class CoreQueries:
    """Asks one host's core on behalf of tools; the core answers at once."""

    def __init__(self, host: CoreHost) -> None:
        self._host = host
        self._numbers = itertools.count(1)

    async def ask(self, question: Message, kind: type[R]) -> R:
        """The core's answer to `question`, which must be of type `kind`."""
        asker, outlet = Address("client", f"tool-{next(self._numbers)}"), ReplyOutlet()
        self._host.attach(asker, outlet)
        try:
            self._host.deliver(asker, question)
            answer = await outlet.answer
        finally:
            self._host.detach(asker, "answered", outlet)
        assert isinstance(answer, kind)
        return answer
