"""Orders instances of a running cluster to drop layers and to hold all again, as a global manager of its term would.

No policy orders layers away, so fault runs do it by hand. Knows no request.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from benchmarks.harness.fault_targets import epoch_of
from benchmarks.harness.fleet_status import Look, instances
from cli.launch.readiness import placeable
from dunlin.effects import Address, Effect, Gone, Message
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.messages.plan import RemapLayers, RemapLayersDone
from dunlin.messages.types import Figure, RejectedOption, Why, i32
from dunlin.runtime.core_host import CoreHost, wall_clock
from dunlin.wire.envelopes import PLAN
from dunlin.wire.streams.dialer import StreamDialer

FIRST_TICKET = 1_000_000
"""Above what a manager numbers its own orders with."""
ANSWER_LIMIT_S = 60.0
NO_ENGINE = "no engine runs"
"""What an instance answers whose engine was just killed."""


class OrderAnswers:
    """The core of the ordering process: it keeps what the instances answer, and wakes the tasks that wait."""

    def __init__(self) -> None:
        self.done: dict[tuple[Address, int], RemapLayersDone] = {}
        self.gone: set[Address] = set()
        self.news = asyncio.Event()

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`."""
        if isinstance(message, RemapLayersDone):
            self.done[sender, message.ticket] = message
        elif isinstance(message, Gone):
            self.gone.add(sender)
        self.news.set()
        return []


class RandomLayerOrders:
    """Every `interval_s` drops some layers of a random instance, then orders all back. One change at a time.

    `dropped` and `restored` count the orders that were carried out, `failed` says why others were not. Neither has
    those that met an instance without an engine, or that it did not live to answer. `is_changing`: layers are missing
    somewhere by order.
    """

    def __init__(self, look: Look, interval_s: float, seed: int = 1) -> None:
        self.dropped = self.restored = 0
        self.failed: list[str] = []
        self.is_changing = False
        self._look = look
        self._interval_s = interval_s
        self._draw = random.Random(seed)
        self._tickets = itertools.count(FIRST_TICKET)
        self._answers = OrderAnswers()
        self._host = CoreHost(self._answers, Address("global_manager", "benchmark", 1), wall_clock())
        self._dialers: dict[Address, StreamDialer] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "RandomLayerOrders":
        if self._interval_s:
            self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for dialer in self._dialers.values():
            await dialer.stop()
        self._host.close()
        if self._task is not None and not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            status = await self._look()
            ready = [one for one in instances(status) if placeable(one)]
            if ready:
                self.is_changing = True
                await self._change(self._draw.choice(ready), epoch_of(status))
                self.is_changing = False

    async def _change(self, member: MemberStatus, epoch: int) -> None:
        assert member.instance is not None
        self.dropped += await self._order(member, epoch, fewer_layers(self._draw, member.instance.model_layers))
        self.restored += await self._order(member, epoch, [])

    async def _order(self, member: MemberStatus, epoch: int, layers: Sequence[int]) -> bool:
        """Whether the instance has carried the order out, or ended."""
        ticket, instance = next(self._tickets), member.address
        why = Why("benchmark", "at random", (Figure("layers", len(layers)),), (RejectedOption("none", "a fault run"),))
        if not await self._connect(member):
            return False
        self._host.send(instance, RemapLayers(epoch, ticket, i32(layers), why))
        await self._until(lambda: (instance, ticket) in self._answers.done or instance in self._answers.gone)
        answer = self._answers.done.get((instance, ticket))
        if answer is not None and answer.detail and answer.detail != NO_ENGINE:
            self.failed.append(f"{instance.name}, layers {list(layers)}: {answer.detail}")
        return answer is not None and not answer.detail

    async def _connect(self, member: MemberStatus) -> bool:
        """Whether there is a stream to the instance."""
        instance = member.address
        if instance not in self._dialers:
            self._dialers[instance] = StreamDialer(self._host, instance, member.endpoint, PLAN, persists=False)
        dialer = self._dialers[instance]
        await self._until(lambda: instance in self._host.peers("instance") or dialer.ended)
        return instance in self._host.peers("instance")

    async def _until(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"an order for layers was not answered within {ANSWER_LIMIT_S:g} s")
            self._answers.news.clear()
            try:
                await asyncio.wait_for(self._answers.news.wait(), 0.2)
            except TimeoutError:
                continue


def fewer_layers(draw: random.Random, count: int) -> list[int]:
    """At least one layer of a model of `count`, and not all."""
    return sorted(draw.sample(range(count), draw.randrange(1, count)))


def missing_layers(status: FleetStatus) -> list[str]:
    """Instances that do not hold all layers."""
    found = [(one.address.name, one.instance) for one in instances(status) if one.instance is not None]
    return [
        f"{name}: {report.layers_held} of {report.model_layers} layers"
        for name, report in found
        if report.layers_held != report.model_layers
    ]
