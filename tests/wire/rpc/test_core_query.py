"""Questions of tools to a core: an address and an answer each, and no trace of them afterwards."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from dunlin.effects import Address, Effect, Gone, Joined, Message, Send
from dunlin.runtime.core_host import CoreHost, wall_clock
from dunlin.wire.rpc.core_query import CoreQueries, ReplyOutlet
from tests.wire.ends import run

ME = Address("monitor", "m", 1)


@dataclass(frozen=True)
class Double:
    number: int


@dataclass(frozen=True)
class Doubled:
    number: int


class Doubler:
    """Answers each question as often as `answers` says, and notes what it heard."""

    def __init__(self, answers: int = 1) -> None:
        self.answers = answers
        self.heard: list[tuple[Address, Message]] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        self.heard.append((sender, message))
        if not isinstance(message, Double):
            return ()
        return [Send(sender, Doubled(2 * message.number + extra)) for extra in range(self.answers)]


def host_of(core: Doubler) -> CoreHost:
    return CoreHost(core, ME, wall_clock(), on_crash=lambda error: None)


@pytest.mark.parametrize("answers", [1, 3])
def test_a_question_has_one_answer_the_first(answers: int) -> None:
    async def scenario() -> None:
        queries = CoreQueries(host_of(Doubler(answers)))
        assert await queries.ask(Double(21), Doubled) == Doubled(42)

    run(scenario)


def test_each_question_comes_from_an_address_of_its_own_that_leaves_again() -> None:
    core = Doubler()

    async def scenario() -> None:
        host = host_of(core)
        queries = CoreQueries(host)
        assert await asyncio.gather(*(queries.ask(Double(n), Doubled) for n in (1, 2))) == [Doubled(2), Doubled(4)]
        await asyncio.sleep(0)
        assert host.peers("client") == []

    run(scenario)
    first, second = Address("client", "tool-1"), Address("client", "tool-2")
    for asker, number in ((first, 1), (second, 2)):
        assert [said for sender, said in core.heard if sender == asker] == [Joined(), Double(number), Gone("answered")]


def test_a_host_that_closes_ends_the_wait() -> None:
    async def scenario() -> None:
        queries = CoreQueries(host := host_of(Doubler(answers=0)))
        asked = asyncio.ensure_future(queries.ask(Double(1), Doubled))
        await asyncio.sleep(0)
        assert not asked.done()
        host.detach(Address("client", "tool-1"), "over")
        with pytest.raises(asyncio.CancelledError):
            await asked

    run(scenario)


def test_an_outlet_keeps_the_first_message_and_a_close_after_it_changes_nothing() -> None:
    async def scenario() -> None:
        outlet = ReplyOutlet()
        assert outlet.send("first")
        assert outlet.send("second")
        outlet.close("over")
        assert await outlet.answer == "first"

    run(scenario)
