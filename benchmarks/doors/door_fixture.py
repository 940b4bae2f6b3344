"""What `benchmarks.doors.token_cost` measures: both doors over a real core and a live host, a bare gRPC server
beside them.

All in this process; the instance is a fake that makes one token for every sequence at a steady rate.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import dunlin.text
from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Accepted, Adopt, Cancel, Ended, NotHeld, Place, Tokens
from dunlin.messages.door import Delta, Submit
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import FinishReason, i32
from dunlin.runtime.core_host import CoreHost, wall_clock
from dunlin.text.tokenizer import load_chat_template, load_tokenizer
from dunlin.wire.rpc.methods import DISPATCHER_SERVICE, GENERATE
from dunlin.wire.rpc.server import GrpcServer
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.grpc_server import GrpcDoor
from services.dispatcher.doors.http.app import HttpDoor, bind
from services.dispatcher.doors.metrics import DoorMetrics

DISPATCHER, INSTANCE = Address("dispatcher", "bench", 1), Address("instance", "bench", 2)
MONITOR = Address("monitor", "bench", 3)
TEXT = "Once upon a time there was a small heron, and it stood still: patient, grey and hungry. "
POSITIONS = 1 << 16
SLOTS = 1 << 24


class StepTicker:
    """Owns one timer: every `step_s` seconds, while wanted, it wakes what waits. A late beat delays no later one."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._next_s = 0.0
        self._beat: asyncio.Event | None = None

    async def wait(self) -> None:
        """Wait for the next one."""
        if self._beat is None:
            loop = asyncio.get_running_loop()
            self._beat = asyncio.Event()
            self._next_s = max(self._next_s + self._step_s, loop.time())
            loop.call_at(self._next_s, self._strike)
        await self._beat.wait()

    def _strike(self) -> None:
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.set()


@dataclass(slots=True)
class RunningSequence:
    """One sequence of the fake."""

    place: Place
    made: int = 0


class SteadyInstance:
    """An outlet that answers like an instance: token n of every text is token n of `said`, again and again."""

    def __init__(self, host: CoreHost, said: list[int], pace: StepTicker) -> None:
        self._host = host
        self._said = said
        self._pace = pace
        self._running: dict[int, RunningSequence] = {}
        self._going: asyncio.Task[None] | None = None

    def send(self, message: Message) -> bool:
        """The dispatcher's side."""
        match message:
            case Place():
                self._running[message.request] = RunningSequence(message)
                self._host.deliver(INSTANCE, Accepted(message.request, message.attempt, message.request))
                if self._going is None or self._going.done():
                    self._going = asyncio.get_running_loop().create_task(self._go())
            case Adopt():
                self._host.deliver(INSTANCE, NotHeld(message.request, message.attempt))
            case Cancel():
                self._running.pop(message.request, None)
                self._host.deliver(INSTANCE, Ended(message.request, message.attempt))
        return True

    def close(self, reason: str) -> None:
        """The dispatcher's side."""
        self._running.clear()

    async def _go(self) -> None:
        while self._running:
            await self._pace.wait()
            if self._running:
                self._host.deliver(INSTANCE, self._step())

    def _step(self) -> Tokens:
        request, attempt, position = array("q"), array("i"), array("q")
        token, finish = array("i"), array("b")
        for number, running in list(self._running.items()):
            request.append(number)
            attempt.append(running.place.attempt)
            position.append(len(running.place.tokens) + running.made)
            token.append(self._said[running.made % len(self._said)])
            running.made += 1
            ends = running.made == running.place.max_tokens
            finish.append(FinishReason.LENGTH if ends else FinishReason.RUNNING)
            if ends:
                del self._running[number]
        return Tokens(request, attempt, position, token, array("f", [-0.25]) * len(request), finish)


class CountingClient:
    """A client without a door: counts the tokens of one request."""

    def __init__(self) -> None:
        self.tokens = 0
        self.done = asyncio.Event()

    def send(self, message: Message) -> bool:
        """The dispatcher's side."""
        if isinstance(message, Delta):
            self.tokens += len(message.tokens)
            if message.finish is not FinishReason.RUNNING:
                self.done.set()
        return True

    def close(self, reason: str) -> None:
        """The dispatcher's side."""
        self.done.set()


@dataclass(slots=True)
class BareGrpcServer:
    """A bare gRPC server that writes `events`, one a beat, to every caller. `events`: encoded `GenerateEvent`s."""

    pace: StepTicker
    events: list[bytes] = field(default_factory=list)

    def handler(self) -> grpc.GenericRpcHandler:
        """To be served under the door's name."""
        method: Any = grpc.unary_stream_rpc_method_handler(self._write)
        return grpc.method_handlers_generic_handler(DISPATCHER_SERVICE, {GENERATE.name: method})

    async def _write(self, request: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        first, *others = self.events
        await context.write(first)
        for event in others:
            await self.pace.wait()
            await context.write(event)


@dataclass(frozen=True, slots=True)
class DoorFixture:
    """What is open: where each way is reached, and what the fake says."""

    host: CoreHost
    floor: BareGrpcServer
    model: ServedModel
    said: list[int]
    sources: dict[str, str]

    def text(self, tokens: int) -> str:
        """What a client must have received after so many tokens."""
        return self.model.tokenizer.decode([self.said[i % len(self.said)] for i in range(tokens)])

    async def without_door(self, streams: int, tokens: int) -> int:
        """The same requests, read in this process by clients that count: the tokens that came."""
        clients = [Address("client", f"bench-{number}") for number in range(streams)]
        readers = [CountingClient() for _ in clients]
        for client, reader in zip(clients, readers, strict=True):
            self.host.attach(client, reader)
            self.host.deliver(client, Submit(i32(self.said[:8]), tokens))
        await asyncio.gather(*(reader.done.wait() for reader in readers))
        for client in clients:
            self.host.detach(client, "done")
        return sum(reader.tokens for reader in readers)


@asynccontextmanager
async def stage(step_s: float) -> AsyncIterator[DoorFixture]:
    """Open everything on free ports of this machine."""
    model = _model()
    said = model.tokenizer.encode(TEXT, add_special_tokens=False)
    core = DispatcherCore(DISPATCHER, DispatcherConfig(max_positions=POSITIONS))
    host = CoreHost(core, DISPATCHER, wall_clock(), on_crash=_raise)
    host.attach(INSTANCE, SteadyInstance(host, said, StepTicker(step_s)))
    host.deliver(MONITOR, FleetView(1, (_member(),)))
    door, callers, floor = (
        RequestGateway(host, model, DoorMetrics()),
        Authenticator(),
        BareGrpcServer(StepTicker(step_s)),
    )
    public, bare = GrpcServer("127.0.0.1:0"), GrpcServer("127.0.0.1:0")
    await public.start([GrpcDoor(door, callers, lambda: "").methods()], [])
    await bare.start([floor.handler()], [])
    listening = bind("127.0.0.1", 0)
    web = HttpDoor(door, callers, listening, lambda: True, host.clock)
    await web.start()
    sources = {
        "grpc": f"127.0.0.1:{public.port}",
        "floor": f"127.0.0.1:{bare.port}",
        "sse": f"http://127.0.0.1:{listening.getsockname()[1]}",
    }
    try:
        yield DoorFixture(host, floor, model, said, sources)
    finally:
        await web.stop()
        await public.stop(0.0)
        await bare.stop(0.0)
        door.shut_down()


def _member() -> MemberView:
    return MemberView(
        INSTANCE, ready=True, capacity_slots=SLOTS, free_slots=SLOTS, max_positions=POSITIONS, plan_version=1
    )


def _model() -> ServedModel:
    data = Path(dunlin.text.__file__).parent / "data"
    tokenizer = load_tokenizer(data)
    eos = tuple(tokenizer.encode("<|end|>", add_special_tokens=False))
    return ServedModel("builtin:tiny", POSITIONS, tokenizer.vocab_size, eos, tokenizer, load_chat_template(data), data)


def _raise(error: Exception) -> None:
    raise error
