"""One instance in virtual time: the real core, the real kvstore core, a fake engine, and dispatchers that check.

After every event the KV cache is audited; every token is compared with the fake model's only right answer.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from dunlin.cost.models import StepTimes
from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import (
    Accepted,
    Cancel,
    Continued,
    Ended,
    Failed,
    Place,
    Poisoned,
    Preempted,
    Refused,
    Returned,
    Tokens,
)
from dunlin.messages.engine import StepDone
from dunlin.messages.fleet import InstanceReport
from dunlin.messages.plan import GroupOrder
from dunlin.messages.pool import CommitRegion, RegionReserved, ReserveRegion
from dunlin.messages.types import (
    FinishReason,
    GroupKind,
    GroupRole,
    HostRegion,
    Region,
    SamplingParams,
    Why,
    f32,
    i8,
    i32,
    i64,
)
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore
from services.instance.sequence.sequence import request_name
from services.kvstore.config import KvstoreConfig, TierConfig
from services.kvstore.core import KvstoreCore
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.process import Delivery
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory, checksum_of
from simulator.engine.model import SimulatedEngine, engine_settings, make_engine_ready
from simulator.engine.token_model import continuation, digest_of
from tests.settings import configured

ME = Address("instance", "i", 5)
ENGINE = Address("engine", "i")
MANAGER = Address("global_manager", "m", 2)
MONITOR = Address("monitor", "m", 3)
D = Address("dispatcher", "d", 10)
OTHER = Address("dispatcher", "e", 11)
LATENCY_S = 0.001
STEP_S = 0.01

M = TypeVar("M")


def make_place(request: int = 1, tokens: int = 10, **overrides: Any) -> Place:
    """A request with a prompt of its own."""
    known = overrides.pop("known", None) or [request % 997, *range(tokens - 1)]
    values = {"attempt": 1, "prompt_tokens": len(known), "max_tokens": 8, "sampling": SamplingParams(seed=request)}
    return Place(request=request, tokens=i32(known), **{**values, **overrides})


def make_order(**overrides: Any) -> GroupOrder:
    values = {
        "epoch": 1,
        "plan_version": 1,
        "group": 1,
        "kind": GroupKind.LOCAL,
        "part": GroupRole.LOCAL,
        "members": (ME,),
    }
    return GroupOrder(**{**values, **overrides})


@dataclass(slots=True)
class Attempt:
    """What one dispatcher heard of one attempt. `is_cut`: its stream was interrupted, tokens may be missing."""

    place: Place
    heard: list[Message] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason = FinishReason.RUNNING
    is_over: bool = False
    is_cut: bool = False

    @property
    def is_accepted(self) -> bool:
        return any(isinstance(message, Accepted) for message in self.heard)

    @property
    def expected(self) -> list[int]:
        """The whole rest of the text, as no stop and no cancel would leave it."""
        place = self.place
        count = place.prompt_tokens + place.max_tokens - len(place.tokens)
        said = continuation(place.tokens, count, place.sampling.seed)
        stops = [index for index, token in enumerate(said) if token in place.stop_ids]
        return said[: stops[0] + 1] if stops else said


class Dispatcher:
    """Records what it is told; fails on a token that is wrong, repeated, missing or of an attempt that is over."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.heard: list[tuple[float, Message]] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Gone):
            for attempt in self.attempts.values():
                attempt.is_cut = True
        if isinstance(message, Joined | Gone):
            return []
        self.heard.append((now_s, message))
        if isinstance(message, Tokens):
            self._on_tokens(message)
        elif isinstance(message, Accepted | Refused | Returned | Ended | Preempted | Continued | Poisoned | Failed):
            self._on_word(message)
        return []

    def of(self, kind: type[M]) -> list[M]:
        """The messages of one kind."""
        return [message for _, message in self.heard if isinstance(message, kind)]

    def times(self, kind: type[Any]) -> list[float]:
        """When they came."""
        return [now_s for now_s, message in self.heard if isinstance(message, kind)]

    def _on_word(
        self, message: Accepted | Refused | Returned | Ended | Preempted | Continued | Poisoned | Failed
    ) -> None:
        attempt = self.attempts.get((message.request, message.attempt))
        if attempt is None:
            assert isinstance(message, Ended), f"{message} of an attempt that was never dispatched"
            return
        assert not attempt.is_over or isinstance(message, Ended), f"{message} after the end"
        attempt.heard.append(message)
        if isinstance(message, Accepted | Refused):  # either way the instance has seen that older ones are stale
            for (request, number), older in self.attempts.items():
                older.is_over |= request == message.request and number < message.attempt
        attempt.is_over |= isinstance(message, Refused | Returned | Ended | Poisoned | Failed)

    def _on_tokens(self, message: Tokens) -> None:
        columns = (message.request, message.attempt, message.position, message.token, message.finish)
        for request, number, position, token, finish in zip(*columns, strict=True):
            attempt = self.attempts[request, number]
            assert not attempt.is_over, f"a token of request {request}, attempt {number}, which is over"
            index = position - len(attempt.place.tokens)
            assert attempt.is_cut or index == len(attempt.tokens), f"token {index} after {len(attempt.tokens)} others"
            assert token == attempt.expected[index], f"request {request}: token {index} is wrong"
            attempt.tokens.append(token)
            attempt.finish = FinishReason(finish)
            attempt.is_over = attempt.finish is not FinishReason.RUNNING
            assert attempt.is_over == (index + 1 == len(attempt.expected))


class Silent:
    """A peer that only listens."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Message]] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        self.heard.append((now_s, message))
        return []


class Bench:
    """Settings: `engine` and `config` override theirs, `tier_bytes` None means no kvstore."""

    def __init__(self, *, tier_bytes: int | None = None, engine: dict[str, Any] | None = None, **config: Any) -> None:
        self.world = World(LATENCY_S)
        self.core = InstanceCore(ME, configured(InstanceConfig, role="instance", **config))
        self.tier = SimulatedHostMemory()
        self.kvstore: KvstoreCore | None = None
        self.kvstore_address = Address("kvstore", "kv", 4)
        self.dispatchers: dict[str, Dispatcher] = {}
        self.monitor, self.manager = Silent(), Silent()
        self.world.add(ME, self.core)
        self.world.add(MONITOR, self.monitor)
        self.world.add(MANAGER, self.manager)
        self.world.on_delivered = self._audit
        if tier_bytes is not None:
            self.start_kvstore(tier_bytes)
        settings = {"step_s": STEP_S, "progress_s": 0.1, **(engine or {})}
        self.seat = SimulatedEngineSupervisor(self.world, ME, engine_settings(**settings), self.tier, self._tenant_of)
        self.world.connect(MANAGER, ME)
        self.world.post(MANAGER, ME, make_order(), 2 * LATENCY_S)
        self.dispatcher = self.add_dispatcher("d")
        self.run(0.05)

    # --- streams ---

    def add_dispatcher(self, name: str) -> Dispatcher:
        dispatcher = self.dispatchers[name] = Dispatcher(Address("dispatcher", name, 10 + len(self.dispatchers)))
        self.world.add(dispatcher.address, dispatcher)
        self.world.connect(dispatcher.address, ME)
        return dispatcher

    def start_kvstore(self, tier_bytes: int) -> None:
        """A kvstore process; one that comes later is another incarnation with an empty tier."""
        address = self.kvstore_address
        self.kvstore_address = Address(address.role, address.name, address.incarnation + 1)
        config = KvstoreConfig("/proc/1/fd/9", tier=TierConfig(tier_bytes, alignment_bytes=64))
        self.kvstore = KvstoreCore(self.kvstore_address, config)
        self.world.add(self.kvstore_address, self.kvstore)
        self.world.connect(ME, self.kvstore_address)

    def kill_kvstore(self) -> None:
        self.world.kill(self.kvstore_address)
        self.kvstore = None

    @property
    def engine(self) -> SimulatedEngine:
        return self.seat.engine

    # --- what is asked ---

    def place(self, request: int = 1, *, by: Dispatcher | None = None, **overrides: Any) -> Attempt:
        """Hand an attempt out; it arrives after the latency."""
        dispatcher = by or self.dispatcher
        place = make_place(request, **overrides)
        attempt = dispatcher.attempts[request, place.attempt] = Attempt(place)
        self.world.post(dispatcher.address, ME, place)
        return attempt

    def again(self, attempt: Attempt, *, by: Dispatcher | None = None) -> Attempt:
        """Hand out the next attempt of the same request, with the tokens that were delivered."""
        place = attempt.place
        return self.place(
            place.request,
            by=by,
            attempt=place.attempt + 1,
            known=[*place.tokens, *attempt.tokens],
            prompt_tokens=place.prompt_tokens,
            max_tokens=place.max_tokens,
            sampling=place.sampling,
            stop_ids=place.stop_ids,
        )

    def cancel(self, attempt: Attempt, *, by: Dispatcher | None = None) -> None:
        dispatcher = by or self.dispatcher
        self.world.post(dispatcher.address, ME, Cancel(attempt.place.request, attempt.place.attempt))

    def leave_behind(
        self,
        place: Place,
        *spans: tuple[int, int],
        tokens: list[int] | None = None,
        layers: tuple[int, int] | None = None,
    ) -> list[HostRegion]:
        """What an attempt at another instance of the node, which is gone now, had committed of the request's tokens.

        With other `tokens`: the KV of those. `layers` (None: all) are the first one and the one after the last.
        """
        assert self.kvstore is not None
        other, ready = Address("instance", "gone", 99), self.engine.ready
        text = list(tokens if tokens is not None else place.tokens)
        key = request_name(self.dispatcher.address, place)
        hosts = []
        self.kvstore.receive(self.world.now_s, other, Joined())
        for start, stop in spans:
            region = Region(*(layers or (0, len(ready.layers))), start, stop)
            chain = prefix_hash.chain_of(prefix_hash.chain_root(place.tenant, ready.weights_digest), text, stop)
            names = (self.dispatcher.address, place.request, place.attempt - 1, region)
            share = (region.layer_stop - region.layer_start) / len(ready.layers)
            size = int((stop - start) * ready.kv_bytes_per_token * share)
            asked = ReserveRegion(1, *names, size, ready.kv_dtype, ready.weights_digest, None, key, chain)
            (answer,) = self.kvstore.receive(self.world.now_s, other, asked)
            assert isinstance(answer, Send)
            assert isinstance(answer.message, RegionReserved), "the tier is full"
            host = answer.message.host
            content = [digest_of(text[: position + 1]) for position in range(start, stop)]
            self.tier.write(host, content)
            checksum = checksum_of(region, ready.kv_dtype, chain, content)
            self.kvstore.receive(self.world.now_s, other, CommitRegion(host.handle, host.generation, checksum))
            hosts.append(host)
        for effect in self.kvstore.receive(self.world.now_s, other, Gone("killed")):
            if isinstance(effect, After):
                self.world.post(self.kvstore.address, self.kvstore.address, effect.message, effect.delay_s)
        return hosts

    def run(self, for_s: float) -> None:
        self.world.run(for_s=for_s)

    def run_until_quiet(self, for_s: float = 120.0) -> None:
        """Until no sequence is here any more; fails if that does not come to pass."""
        self.run(2 * LATENCY_S)
        assert self.world.run(lambda: len(self.core.sequences) == 0, for_s=for_s), f"still {self.core!r}"
        self.run(0.05)

    # --- what must hold ---

    def check_empty(self) -> None:
        """Everything was given back."""
        slots = self.core.slot_table
        assert self.core.lifecycle.kv_cache.available_slots == slots.capacity, f"{slots!r}"
        assert self.engine.open_sequences == []
        assert self.core.steps.outstanding == 0
        if self.kvstore is not None:
            assert len(self.kvstore.catalog) == 0, "a region was forgotten"

    def sent(self, kind: type[M], to: Address | None = None) -> list[M]:
        """What the instance sent, oldest first."""
        found = []
        for _, sender, receiver, message in self.world.sent:
            if sender == ME and isinstance(message, kind) and to in (None, receiver):
                found.append(message)
        return found

    def _tenant_of(self, number: int) -> str:
        sequence = self.core.sequences.by_number(number)
        return sequence.place.tenant if sequence is not None else ""

    def _audit(self, event: Delivery) -> None:
        if event.to != ME:
            return
        self.core.lifecycle.kv_cache.check_integrity()
        check_report(self.core.report())
        assert self.core.steps.outstanding <= 2
        if self.kvstore is not None:
            self.kvstore.catalog.check_integrity()


def check_report(report: InstanceReport) -> None:
    """I8."""
    uses = (report.owned_slots, report.reserved_slots, report.moving_slots, report.quarantined_slots)
    assert report.free_slots + sum(uses) == report.capacity_slots


class Direct:
    """The core alone, fed message by message: for what must be answered at once and to the letter."""

    def __init__(self, profile: StepTimes | None = None, **config: Any) -> None:
        self.core = InstanceCore(ME, configured(InstanceConfig, role="instance", **config), profile)
        self.timers: list[After] = []

    def give(self, sender: Address, message: Message, now_s: float = 0.0) -> list[Send]:
        """Feed one message; the sends it caused."""
        effects = self.core.receive(now_s, sender, message)
        self.timers += [effect for effect in effects if isinstance(effect, After)]
        return [effect for effect in effects if isinstance(effect, Send)]


def ready_core(engine: dict[str, Any] | None = None, profile: StepTimes | None = None, **config: Any) -> Direct:
    """A core with an engine, a plan and a dispatcher."""
    direct = Direct(profile, **config)
    direct.give(ENGINE, Joined())
    direct.give(ENGINE, make_engine_ready(**(engine or {})))
    direct.give(MANAGER, make_order())
    direct.give(D, Joined())
    return direct


def of(kind: type[Any], sends: list[Any]) -> list[Any]:
    return [send.message for send in sends if isinstance(send.message, kind)]


def only(kind: type[Any], sends: list[Any]) -> Any:
    (message,) = of(kind, sends)
    return message


def done(
    step: int, *tokens: tuple[int, int], finish: FinishReason = FinishReason.RUNNING, dropped: tuple[int, ...] = ()
) -> StepDone:
    """An answer of (sequence, token) rows."""
    numbers, values = [number for number, _ in tokens], [token for _, token in tokens]
    finishes = i8([finish] * len(tokens))
    return StepDone(step, i64(numbers), i32(values), f32([-0.5] * len(tokens)), finishes, i64(dropped))


def figures(why: Why | None) -> dict[str, float]:
    assert why is not None
    return {figure.name: figure.value for figure in why.figures}
