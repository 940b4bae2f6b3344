"""Both doors over a real core and a live host in this process, with a fake instance that makes known tokens.

No clock is waited for: the fake makes a token for every sequence each time the event loop comes round, unless held.
"""

import asyncio
import random
import socket
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import openai
from aiohttp import web

import dunlin.text
from dunlin.auth.tenants import Tenant
from dunlin.auth.tls_context import MakeContext
from dunlin.effects import Message
from dunlin.messages.declare import Method
from dunlin.messages.dispatch import Accepted, Adopt, Cancel, Ended, NotHeld, Place, PromptScored, Reused, Tokens
from dunlin.messages.fleet import FleetView
from dunlin.messages.types import FinishReason
from dunlin.runtime.core_host import CoreHost, wall_clock
from dunlin.structured_output.compiler import GrammarCompiler
from dunlin.structured_output.matcher import GrammarMatcher
from dunlin.text.tokenizer import Tokenizer, load_chat_template, load_tokenizer
from dunlin.wire.rpc.methods import Answer
from dunlin.wire.rpc.server import GrpcServer
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.calls import CallLogSink
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.grpc_server import GrpcDoor
from services.dispatcher.doors.http.app import HttpConfig, HttpDoor, bind
from services.dispatcher.doors.metrics import DoorMetrics
from services.dispatcher.doors.preprocess.pool import PreprocessLimits
from tests.services.dispatcher.factories import MONITOR, SELF, A, member
from tests.settings import configured

MoreDoors = Callable[
    [RequestGateway, Authenticator, GrpcDoor], tuple[list[web.RouteDef], dict[Method[Any, Any], Answer]]
]
"""Makes further routes and gRPC answers, such as those of batches."""
DATA = Path(dunlin.text.__file__).parent / "data"
SERVERS = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:7070"}
TEXT = "Once upon a time there was a small heron, and it stood still: naïve, patient, 🐦 and hungry. "


def model(**overrides: Any) -> ServedModel:
    """The built-in tokenizer without any weights."""
    tokenizer = _tokenizer()
    eos = tokenizer.encode("<|end|>", add_special_tokens=False)
    values: dict[str, Any] = {
        "name": "builtin:tiny",
        "max_positions": 1000,
        "vocabulary": tokenizer.vocab_size,
        "eos_ids": tuple(eos),
        "tokenizer": tokenizer,
        "template": load_chat_template(DATA),
        "folder": DATA,
    }
    return ServedModel(**{**values, **overrides})


@cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer(DATA)


class FakeInstance:
    """An outlet that answers like an instance. Token n of every text is token n of `TEXT`, again and again.

    `held` sequences make no tokens until `release`; `reuses` tokens of each
    prompt are there already. `end_after` ends texts with the first stop id. Of a text with a grammar each token is
    drawn by its seed from those that the grammar allows.
    """

    def __init__(self, host: CoreHost, tokenizer: Tokenizer) -> None:
        self.text = tokenizer.encode(TEXT, add_special_tokens=False)
        self.placed: list[Place] = []
        self.cancelled: list[Cancel] = []
        self.held = False
        self.reuses = 0
        self.end_after: int | None = None
        self.changed = asyncio.Event()
        self._host = host
        self._running: dict[int, list[int]] = {}
        self._places: dict[int, Place] = {}
        self._matchers: dict[int, GrammarMatcher] = {}
        self._grammars = GrammarCompiler(DATA, tokenizer.vocab_size, (1,))

    def send(self, message: Message) -> bool:
        match message:
            case Place():
                self.placed.append(message)
                self._places[message.request] = message
                self._running[message.request] = list(message.tokens)
                if message.sampling.grammar is not None:
                    self._matchers[message.request] = self._grammars.matcher(message.sampling.grammar)
                self._host.deliver(A, Accepted(message.request, message.attempt, message.request))
                if message.sampling.prompt_logprobs is not None:
                    self._score(message)
                if self.reuses:
                    self._host.deliver(A, Reused(message.request, message.attempt, self.reuses))
                asyncio.get_running_loop().call_soon(self.step)
            case Adopt():
                self._host.deliver(A, NotHeld(message.request, message.attempt))
            case Cancel():
                self.cancelled.append(message)
                self._running.pop(message.request, None)
                self._host.deliver(A, Ended(message.request, message.attempt))
        self.changed.set()
        return True

    def _score(self, place: Place) -> None:
        """Token n of a prompt has log-probability -n and rank n, and n, n + 1, … are the likeliest; in two parts."""
        first, stop, best = place.scored + 1, place.prompt_tokens, place.sampling.prompt_logprobs or 0
        middle = (first + stop) // 2
        for span in (range(first, middle), range(middle, stop)):
            tops = [token + place for token in span for place in range(best)]
            ranks, logprobs = array("i", span), array("f", [-float(token) for token in span])
            columns = logprobs, ranks, array("i", tops), array("f", [-0.5] * len(tops))
            self._host.deliver(A, PromptScored(place.request, place.attempt, span.start, best, *columns))

    def close(self, reason: str) -> None:
        self._running.clear()

    @property
    def running(self) -> list[int]:
        return list(self._running)

    def release(self) -> None:
        """Go on."""
        self.held = False
        self.step()

    def step(self) -> None:
        """One token for every running request, then again in the loop's next turn."""
        if self.held or not self._running:
            return
        rows = [self._row(number) for number in list(self._running)]
        request, attempt, position, token, finish = zip(*rows, strict=True)
        tops = [token_ + offset for token_ in token for offset in (0, 1)]
        self._host.deliver(
            A,
            Tokens(
                array("q", request),
                array("i", attempt),
                array("q", position),
                array("i", token),
                array("f", [-0.25] * len(rows)),
                array("b", finish),
                array("i", [2] * len(rows)),
                array("i", tops),
                array("f", [-0.25, -2.0] * len(rows)),
            ),
        )
        asyncio.get_running_loop().call_soon(self.step)

    def one(self) -> None:
        """One token for every running request, although `held`."""
        self.held = False
        self.step()
        self.held = True

    async def until(self, condition: Any) -> None:
        """Wait for something that messages to this instance make true."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def _row(self, number: int) -> tuple[int, int, int, int, int]:
        place, tokens = self._places[number], self._running[number]
        generated = len(tokens) - place.prompt_tokens
        finish = FinishReason.LENGTH if generated + 1 == place.max_tokens else FinishReason.RUNNING
        token = self.text[generated % len(self.text)]
        if generated == self.end_after and place.stop_ids:
            token, finish = place.stop_ids[0], FinishReason.STOP
        if number in self._matchers:
            token, finish = self._matched(number, place, generated)
        tokens.append(token)
        if finish is not FinishReason.RUNNING:
            del self._running[number]
        return number, place.attempt, len(tokens) - 1, token, finish

    def _matched(self, number: int, place: Place, generated: int) -> tuple[int, FinishReason]:
        matcher = self._matchers[number]
        allowed = matcher.allowed(place.stop_ids).nonzero()[0].tolist()
        token = random.Random(f"{place.sampling.seed} {place.sampling.choice} {generated}").choice(allowed)
        if token in place.stop_ids:
            return token, FinishReason.STOP
        matcher.consume((token,))
        return token, FinishReason.LENGTH if generated + 1 == place.max_tokens else FinishReason.RUNNING


class Doors:
    """What a test may touch."""

    def __init__(
        self,
        host: CoreHost,
        core: DispatcherCore,
        gateway: RequestGateway,
        authenticator: Authenticator,
        instance: FakeInstance,
        http: int,
        grpc: int,
        web: HttpDoor,
        refused: list[str],
        listening: socket.socket,
    ) -> None:
        self.listening = listening
        self.web = web
        self.refused = refused
        self.http_port = http
        self.authenticator = authenticator
        self.host = host
        self.core = core
        self.gateway = gateway
        self.instance = instance
        self.url = f"http://127.0.0.1:{http}"
        self.endpoint = f"127.0.0.1:{grpc}"
        self._clients: list[openai.AsyncOpenAI] = []

    def client(self, api_key: str = "none") -> openai.AsyncOpenAI:
        """A new client of the HTTP door, closed with the doors: one left open complains in another test's log."""
        made = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=300)
        self._clients.append(made)
        return made

    def serve(self, capacity_slots: int = 100_000) -> None:
        """The instance joins, and the monitor's first view names it."""
        self.host.attach(A, self.instance)
        self.host.deliver(MONITOR, FleetView(1, (member(A, capacity_slots=capacity_slots, free_slots=capacity_slots),)))

    async def close_clients(self) -> None:
        for client in self._clients:
            await client.close()

    def text(self, tokens: int) -> str:
        """The first so many tokens of what the fake says, decoded together."""
        said = [self.instance.text[i % len(self.instance.text)] for i in range(tokens)]
        return self.gateway.model.tokenizer.decode(said)


@asynccontextmanager
async def doors(
    *,
    limits: PreprocessLimits | None = None,
    http: HttpConfig | None = None,
    served: ServedModel | None = None,
    serving: bool = True,
    monitor: str = "",
    log: CallLogSink | None = None,
    tenants: tuple[Tenant, ...] | None = None,
    tls: MakeContext | None = None,
    more: "MoreDoors | None" = None,
    **config: Any,
) -> AsyncIterator[Doors]:
    """Open both doors on free ports; `more` makes routes and methods beside theirs."""
    served = served or model()
    core = DispatcherCore(SELF, configured(DispatcherConfig, **{"max_positions": served.max_positions, **config}))
    host = CoreHost(core, SELF, wall_clock(), on_crash=_raise)
    authenticator = Authenticator()
    gateway = RequestGateway(host, served, DoorMetrics(authenticator.knows), limits, log, SERVERS)
    instance = FakeInstance(host, served.tokenizer)
    if tenants is not None:
        host.deliver(SELF, authenticator.set_tenants(tenants))
    server = GrpcServer("127.0.0.1:0")
    grpc_door = GrpcDoor(gateway, authenticator, lambda: monitor)
    routes, answers = more(gateway, authenticator, grpc_door) if more is not None else ([], {})
    await server.start([grpc_door.methods(answers)], [])
    listening = bind("127.0.0.1", 0)
    refused: list[str] = []
    door = HttpDoor(
        gateway,
        authenticator,
        listening,
        lambda: bool(core.fleet.serving),
        host.clock,
        http,
        tls,
        lambda tenant: core.quotas.usage(tenant, host.clock()),
        refused.append,
        routes,
    )
    await door.start()
    http_port = listening.getsockname()[1]
    opened = Doors(host, core, gateway, authenticator, instance, http_port, server.port, door, refused, listening)
    if serving:
        opened.serve()
    try:
        yield opened
    finally:
        await opened.close_clients()
        await door.stop()
        await server.stop(0.0)
        gateway.shut_down()
        core.journal.check_integrity()


def _raise(error: Exception) -> None:
    raise error
