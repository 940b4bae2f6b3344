"""What the path from a dispatcher to an instance and back costs: `dunlin bench path`.

Both cores and the gRPC stream between them are real and run in this process; the engine only answers. So all CPU time
that this process takes is the path's, less what the same engine takes when it is called directly.
"""

import asyncio
import time
from dataclasses import dataclass

import uvloop

from dunlin.config.fields import build
from dunlin.effects import Address, Message
from dunlin.messages.door import Delta, Submit
from dunlin.messages.engine import EngineReady, Step, StepDone
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import FinishReason, GroupKind, GroupRole, f32, i8, i32, i64
from dunlin.policies.presets import DEFAULT_PRESET, preset_settings
from dunlin.runtime.core_host import CoreHost, wall_clock
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.rpc.server import GrpcServer
from dunlin.wire.streams.acceptor import StreamAcceptor
from dunlin.wire.streams.dialer import StreamDialer
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore

DISPATCHER, INSTANCE = Address("dispatcher", "bench", 1), Address("instance", "bench", 2)
MONITOR, MANAGER = Address("monitor", "bench", 3), Address("global_manager", "bench", 4)
ENGINE = Address("engine", INSTANCE.name)
PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class PathCost:
    """For one number of running sequences. Times of the clock are of a machine with nothing else to do."""

    running: int
    tokens: int
    path_us_per_token: float
    engine_us_per_token: float
    first_token_ms: float
    steps_per_s: float


class AnsweringEngine:
    """Answers each step with a token for every row that samples, and computes nothing."""

    def __init__(self, host: CoreHost | None = None) -> None:
        self._host = host

    def send(self, message: Message) -> bool:
        """The instance's side."""
        if isinstance(message, Step) and self._host is not None:
            # Not at once: an engine is another process, and its answer comes in another turn of the loop.
            asyncio.get_running_loop().call_soon(self._host.deliver, ENGINE, self.answer(message))
        return True

    def close(self, reason: str) -> None:
        """The instance's side."""

    def answer(self, step: Step) -> StepDone:
        """The step's tokens."""
        named = step.sequence[:0]
        for sequence, samples in zip(step.sequence, step.sample, strict=True):
            if samples:
                named.append(sequence)
        rows = len(named)
        return StepDone(
            step.step,
            named,
            i32([7]) * rows,
            f32([-1.0]) * rows,
            i8([FinishReason.RUNNING]) * rows,
            decode_rows=rows,
            tokens_computed=rows,
            compute_s=1e-3,
        )


class TokenCounter:
    """A client that counts."""

    def __init__(self, wanted: int) -> None:
        self.tokens = 0
        self.began_s = time.perf_counter()
        self.first_s = 0.0
        self.done = asyncio.Event()
        self._wanted = wanted

    def send(self, message: Message) -> bool:
        """The dispatcher's side."""
        if isinstance(message, Delta):
            self.first_s = self.first_s or time.perf_counter()
            self.tokens += len(message.tokens)
            if self.tokens >= self._wanted or message.finish is not FinishReason.RUNNING:
                self.done.set()
        return True

    def close(self, reason: str) -> None:
        """The dispatcher's side."""
        self.done.set()


def measure(running: tuple[int, ...], tokens: int) -> list[PathCost]:
    """The costs at each number of running sequences, over about `tokens` tokens each."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(running, tokens))


async def _measure(running: tuple[int, ...], tokens: int) -> list[PathCost]:
    settings = {**preset_settings(DEFAULT_PRESET, "instance"), "scheduler.max_running": 256}
    instance_core = InstanceCore(INSTANCE, build(InstanceConfig, settings))
    dispatcher_core = DispatcherCore(DISPATCHER, build(DispatcherConfig, preset_settings(DEFAULT_PRESET, "dispatcher")))
    instance = CoreHost(instance_core, INSTANCE, wall_clock(), on_crash=_raise)
    dispatcher = CoreHost(dispatcher_core, DISPATCHER, wall_clock(), on_crash=_raise)
    server = GrpcServer("127.0.0.1:0")
    await server.start([StreamAcceptor(instance, [DISPATCH])], ["dunlin.v1.Dispatch"])
    dialer = StreamDialer(dispatcher, INSTANCE, f"127.0.0.1:{server.port}", DISPATCH)
    try:
        await _ready(instance, dispatcher)
        await _run(dispatcher, 4, 200)  # warm
        return [await _cost(dispatcher, count, max(tokens // count, 50)) for count in running]
    finally:
        await dialer.stop()
        await server.stop(0.1)


async def _ready(instance: CoreHost, dispatcher: CoreHost) -> None:
    instance.attach(ENGINE, AnsweringEngine(instance))
    slots = 1 << 20
    instance.deliver(ENGINE, EngineReady(i32([0]), slots, 1, "bench", "fp32", 64, 1 << 16, 1000))
    instance.deliver(MANAGER, GroupOrder(1, 1, 1, GroupKind.LOCAL, GroupRole.LOCAL, (INSTANCE,)))
    while not dispatcher.peers("instance"):  # noqa: ASYNC110  # it comes up once, and nothing tells of it here
        await asyncio.sleep(0.01)
    view = MemberView(
        INSTANCE, ready=True, capacity_slots=slots, free_slots=slots, max_positions=1 << 16, plan_version=1
    )
    dispatcher.deliver(MONITOR, FleetView(1, (view,)))


async def _run(dispatcher: CoreHost, count: int, each: int) -> list[TokenCounter]:
    readers = []
    for number in range(count):
        client = Address("client", f"bench-{count}-{number}")
        reader = TokenCounter(each)
        dispatcher.attach(client, reader)
        dispatcher.deliver(client, Submit(i32(range(PROMPT_TOKENS)), each))
        readers.append(reader)
    await asyncio.gather(*(reader.done.wait() for reader in readers))
    for number in range(count):
        dispatcher.detach(Address("client", f"bench-{count}-{number}"), "done")
    return readers


async def _cost(dispatcher: CoreHost, count: int, each: int) -> PathCost:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    readers = await _run(dispatcher, count, each)
    cpu_s, took_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    tokens = sum(reader.tokens for reader in readers)
    engine_us = _engine_us(count)
    alone = await _first_token_ms(dispatcher)
    return PathCost(count, tokens, cpu_s / tokens * 1e6 - engine_us, engine_us, alone, each / took_s)


async def _first_token_ms(dispatcher: CoreHost) -> float:
    """From submission to the first token, with nothing else running: the middle of several."""
    found = []
    for _ in range(15):
        (reader,) = await _run(dispatcher, 1, 1)
        found.append((reader.first_s - reader.began_s) * 1e3)
    return sorted(found)[len(found) // 2]


def _engine_us(count: int) -> float:
    """CPU of the same engine, called here, per token."""
    engine, steps, column = AnsweringEngine(), 2000, i64(range(count))
    step = Step(1, column, column, column, i8([1]) * count, i32(range(count)), column, column)
    cpu_s = time.process_time()
    for _ in range(steps):
        engine.answer(step)
    return (time.process_time() - cpu_s) / steps / count * 1e6


def _raise(error: Exception) -> None:
    raise error
