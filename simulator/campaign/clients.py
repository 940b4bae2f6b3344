"""The clients of a campaign: each checks every token that reaches it, and does what the SDK does when things go wrong.

Knows what the model's continuation of its prompt is; knows nothing of the cluster but its doors.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from dunlin.effects import Address, Effect, Gone, Message
from dunlin.messages.door import Admitted, Delta, Rejected, Rejection, Submit
from dunlin.messages.types import Finish, Sampling, i32
from simulator.campaign.plans import PlannedRequest
from simulator.campaign.violation import Violation
from simulator.cluster.simulated import SimulatedCluster
from simulator.engine.token_model import continuation

RETRY_S = 0.5
MOST_TRIES = 500


@dataclass
class CampaignClient:
    """One client of one request. `attempts` counts its Submits; `left` when it went away without a word."""

    planned: PlannedRequest
    cluster: SimulatedCluster
    number: int
    submit: Submit
    expected: list[int]
    door: Address | None = None
    address: Address = field(init=False)
    request: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: Finish = Finish.RUNNING
    detail: str = ""
    rejected: Rejected | None = None
    attempts: int = 0
    disconnected: bool = False
    connected_s: float = 0.0
    ended_s: float = 0.0

    def __post_init__(self) -> None:
        self.address = Address("client", f"client-{self.number}")

    def __repr__(self) -> str:
        state = f"{len(self.tokens)} of {len(self.expected)} tokens, {self.finish.name} {self.detail!r}"
        return f"client {self.number} of {self.request or 'no request'} at {self.door}: {state}, {self.rejected}"

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come."""
        return self.disconnected or self.finish is not Finish.RUNNING or self.rejected is not None

    def connect(self) -> None:
        """To its door, or to any that is open; with what it has, if it was served before."""
        if self.is_done:
            return
        doors = self.cluster.doors()
        if not doors or self.attempts >= MOST_TRIES:
            return self.cluster.world.call_later(RETRY_S, self.connect)
        if not self.request:
            self.tokens = []  # its door passes nothing on before it can say which request it is
        self.connected_s = self.cluster.world.now_s
        self.door = doors[(self.planned.door + self.attempts) % len(doors)]
        self.attempts += 1
        self.address = Address("client", f"client-{self.number}-{self.attempts}")
        self.cluster.world.add(self.address, self)
        self.cluster.world.connect(self.address, self.door)
        submit = replace(self.submit, key=self.request, received=i32(self.tokens)) if self.request else self.submit
        self.cluster.world.post(self.address, self.door, submit)
        self.cluster.world.call_later(RETRY_S, partial(self._check_connected, self.address))

    def _check_connected(self, address: Address) -> None:
        """A door that closed before the connection was open says nothing: dial again."""
        if self.is_done or address != self.address or self.door is None:
            return
        if not self.cluster.world.is_connected(address, self.door):
            self.door = None
            self.connect()

    def disconnect(self) -> None:
        """Its connection ends; it reads nothing more."""
        if self.is_done:
            return
        self.disconnected, self.ended_s = True, self.cluster.world.now_s
        if self.door is not None:
            self.cluster.world.disconnect(self.address, self.door, "client left")

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """What its dispatcher says."""
        if self.disconnected or sender != self.door:
            return []
        if isinstance(message, Delta):
            self._on_delta(now_s, message)
        elif isinstance(message, Admitted):
            self._on_admitted(now_s, message)
        elif isinstance(message, Rejected):
            self._on_rejected(message)
        elif isinstance(message, Gone) and not self.is_done:
            # Its connection broke: as the SDK does, it goes on elsewhere a moment later.
            self.door = None
            self.cluster.world.call_later(0.1, self.connect)
        return []

    def _on_admitted(self, now_s: float, message: Admitted) -> None:
        # Begun at two dispatchers under one name of its tenant's, it has two ids until they find each other.
        if self.request not in ("", message.request) and not self.submit.idempotency:
            raise Violation("I1", now_s, f"{self!r} is called {message.request} now")
        self.request = self.request or message.request

    def _on_delta(self, now_s: float, delta: Delta) -> None:
        if self.finish is not Finish.RUNNING:
            raise Violation("I1", now_s, f"{self!r} gets {list(delta.tokens)} after its end")
        at = len(self.tokens)
        if list(delta.tokens) != self.expected[at : at + len(delta.tokens)]:
            due = self.expected[at : at + len(delta.tokens)]
            raise Violation("I1", now_s, f"{self!r} gets {list(delta.tokens)} where {due} was due")
        self.tokens += delta.tokens
        self.finish, self.detail = delta.finish, delta.detail
        if self.is_done:
            self.ended_s = self.cluster.world.now_s

    def _on_rejected(self, rejected: Rejected) -> None:
        is_passing = rejected.code is Rejection.UNAVAILABLE or (self.request and rejected.code is Rejection.FULL)
        if is_passing and self.attempts < MOST_TRIES:
            self.door = None
            return self.cluster.world.call_later(max(RETRY_S, rejected.retry_after_s or 0.0), self.connect)
        self.rejected, self.ended_s = rejected, self.cluster.world.now_s
        return None


class CampaignClients:
    """All clients of a run. `done` counts what they did, besides reading."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.all: list[CampaignClient] = []
        self.done: Counter[str] = Counter()
        self._cluster = cluster

    def arrivals(self, ask: PlannedRequest) -> list[tuple[float, Callable[[], None]]]:
        """When the clients of a request come, and go."""
        times_s = [ask.at_s] if ask.retry_s is None else [ask.at_s, ask.at_s + ask.retry_s]
        acts: list[tuple[float, Callable[[], None]]] = []
        for at_s in times_s:
            reader = self._reader(ask)
            acts.append((at_s, reader.connect))
            if ask.disconnect_s is not None:
                acts.append((at_s + ask.disconnect_s, reader.disconnect))
        return acts

    def duplicate(self, reader: CampaignClient) -> CampaignClient:
        """Another client of the same request, who comes to the other door."""
        twin = self._reader(reader.planned)
        twin.attempts = 1
        return twin

    def open(self) -> list[CampaignClient]:
        """Those who wait for something."""
        return [reader for reader in self.all if reader.attempts and not reader.is_done]

    def all_done(self) -> bool:
        """Whether nobody waits."""
        return all(reader.is_done for reader in self.all)

    def _reader(self, ask: PlannedRequest) -> CampaignClient:
        name = {"idempotency": f"name {ask.number}", "digest": b"d"} if ask.named else {}
        submit = Submit(
            i32(ask.tokens),
            ask.max_tokens,
            Sampling(seed=ask.number),
            timeout_s=ask.timeout_s,
            tenant=ask.tenant,
            **name,  # type: ignore[arg-type]
        )
        said = continuation(ask.tokens, ask.max_tokens, ask.number)
        self.all.append(CampaignClient(ask, self._cluster, len(self.all), submit, said))
        return self.all[-1]
