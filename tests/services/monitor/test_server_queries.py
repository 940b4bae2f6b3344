"""Queries of tools: each is one question to the core, which answers at once."""

import asyncio
from typing import Any

from dunlin.effects import Address, Effect, Gone, Joined, Message, Send
from dunlin.messages.fleet import ExplainQuery, Explanation, FleetStatus, StatusQuery
from dunlin.runtime.core_host import CoreHost
from services.monitor.server_queries import QueryServicer

ME = Address("monitor", "m", 5)


class Desk:
    """A core that answers both questions, and remembers them with their senders."""

    def __init__(self) -> None:
        self.heard: list[tuple[Address, Message]] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Joined | Gone):
            return []
        self.heard.append((sender, message))
        if isinstance(message, ExplainQuery):
            return [Send(sender, Explanation(()))]
        return [Send(sender, FleetStatus(3, ()))]


def test_each_query_reaches_the_core_and_its_answer_comes_back() -> None:
    async def ask() -> tuple[Desk, list[Any]]:
        desk = Desk()
        queries = QueryServicer(CoreHost(desk, ME, asyncio.get_running_loop().time))
        context: Any = None
        explained = await queries.explain(ExplainQuery("req-1-1"), context)
        return desk, [explained, await queries.status(StatusQuery(), context), await queries.fleet_status()]

    desk, answers = asyncio.run(ask())
    assert answers == [Explanation(()), FleetStatus(3, ()), FleetStatus(3, ())]
    assert [message for _, message in desk.heard] == [ExplainQuery("req-1-1"), StatusQuery(), StatusQuery()]
    assert len({sender for sender, _ in desk.heard}) == 3, "each question has an address of its own"
