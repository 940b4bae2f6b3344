"""The desk where tools ask: each question comes to the core from an address of its own, and one answer goes back."""

import asyncio
import itertools
from typing import Any, TypeVar

import grpc
import grpc.aio

from dunlin.effects import Address, Message
from dunlin.host import Host
from dunlin.messages.fleet import ExplainQuery, Explanation, FleetStatus, StatusQuery

R = TypeVar("R")
Context = grpc.aio.ServicerContext[Any, Any]


class OneAnswer:
    """An outlet for a single message."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def send(self, message: Message) -> bool:
        """Keep the first message."""
        if not self.answer.done():
            self.answer.set_result(message)
        return True

    def close(self, reason: str) -> None:
        """No answer will come."""
        self.answer.cancel()


class Desk:
    """Asks the core in the name of tools; also what the page of metrics is made from."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._numbers = itertools.count(1)

    async def explain(self, query: ExplainQuery, context: Context) -> Explanation:
        """The recorded messages about a request."""
        return await self._ask(query, Explanation)

    async def status(self, query: StatusQuery, context: Context) -> FleetStatus:
        """The fleet now."""
        return await self._ask(query, FleetStatus)

    async def now(self) -> FleetStatus:
        """The fleet now, for this process itself."""
        return await self._ask(StatusQuery(), FleetStatus)

    async def _ask(self, query: Message, kind: type[R]) -> R:
        asker, outlet = Address("client", f"tool-{next(self._numbers)}"), OneAnswer()
        self._host.attach(asker, outlet)
        try:
            self._host.deliver(asker, query)
            answer = await outlet.answer
        finally:
            self._host.detach(asker, "answered", outlet)
        assert isinstance(answer, kind)
        return answer
