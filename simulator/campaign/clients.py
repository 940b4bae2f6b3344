"""The clients of a campaign: each compares every token, and every log-probability of its prompt, with the expected one,
and retries as the SDK does.

A client knows the token model's continuation of its prompt, and of the cluster only the dispatchers' addresses.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from dunlin.effects import Address, Effect, Gone, Message
from dunlin.messages.door import Admitted, Delta, PromptLogprobs, RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import FinishReason, RequestClass, SamplingParams, i32
from simulator.campaign.batch_results import CampaignJob
from simulator.campaign.plans import PlannedRequest
from simulator.campaign.stream_rules import wrong_tokens
from simulator.campaign.violation import Violation
from simulator.cluster.simulated import SimulatedCluster
from simulator.engine.prompt_scores import prompt_logprob
from simulator.engine.token_model import continuation

RETRY_S = 0.5
MOST_TRIES = 500
WAITED_FOR = (RejectionCode.FULL, RejectionCode.UNAVAILABLE, RejectionCode.QUOTA)
"""Refusals after which a line of a batch job waits and asks again (services/dispatcher/doors/batches)."""


@dataclass
class CampaignClient:
    """One client of one request.

    `attempts` counts its Submits. `disconnected`: it ended its connection without a cancel. `connected_s` and `ended_s`
    are times of the world. `scored`: log-probabilities of its prompt that came.
    """

    planned: PlannedRequest
    cluster: SimulatedCluster
    number: int
    submit: Submit
    expected: list[int]
    door: Address | None = None
    address: Address = field(init=False)
    request: str = ""
    tokens: list[int] = field(default_factory=list)
    scored: int = 0
    finish: FinishReason = FinishReason.RUNNING
    detail: str = ""
    rejected: SubmitRejected | None = None
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
        """Whether it awaits nothing more: the stream ended, it was rejected, or it disconnected."""
        return self.disconnected or self.finish is not FinishReason.RUNNING or self.rejected is not None

    def connect(self) -> None:
        """Submit to its dispatcher, or to the next one; a request that was admitted before is resumed."""
        if self.is_done:
            return
        doors = self.cluster.doors()
        if not doors or self.attempts >= MOST_TRIES:
            return self.cluster.world.call_later(RETRY_S, self.connect)
        return self.submit_at(doors[(self.planned.door + self.attempts) % len(doors)])

    def submit_at(self, door: Address) -> None:
        """Open a stream to this dispatcher and submit."""
        if not self.request:
            self.tokens, self.scored = [], 0  # a dispatcher sends no token before the id
        self.connected_s = self.cluster.world.now_s
        self.door = door
        self.attempts += 1
        self.address = Address("client", f"client-{self.number}-{self.attempts}")
        self.cluster.world.add(self.address, self)
        self.cluster.world.connect(self.address, self.door)
        submit = self.submit
        if self.request:
            submit = replace(submit, key=self.request, received=i32(self.tokens), scored=self.scored)
        self.cluster.world.post(self.address, self.door, submit)
        self.cluster.world.call_later(RETRY_S, partial(self._check_connected, self.address))

    def _check_connected(self, address: Address) -> None:
        """Dial again if the dispatcher died before the connection was open: no `Gone` comes then."""
        if self.is_done or address != self.address or self.door is None:
            return
        if not self.cluster.world.is_connected(address, self.door):
            self.door = None
            self.connect()

    def disconnect(self) -> None:
        """End the connection without a cancel."""
        if self.is_done:
            return
        self.disconnected, self.ended_s = True, self.cluster.world.now_s
        if self.door is not None:
            self.cluster.world.disconnect(self.address, self.door, "client left")

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Handle an answer of its dispatcher.

        Raises:
            Violation: I1, a token that is wrong, missing, repeated or after the end.
        """
        if self.disconnected or sender != self.door:
            return []
        if isinstance(message, Delta):
            self._on_delta(now_s, message)
        elif isinstance(message, Admitted):
            self._on_admitted(now_s, message)
        elif isinstance(message, SubmitRejected):
            self.on_rejected(message)
        elif isinstance(message, Gone) and not self.is_done:
            # As the SDK does, it resumes at another dispatcher a moment later.
            self.door = None
            self.cluster.world.call_later(0.1, self.connect)
        return []

    def _on_admitted(self, now_s: float, message: Admitted) -> None:
        # With an idempotency key, begun at two dispatchers, it has two ids until they find each other.
        if self.request not in ("", message.request) and not self.submit.idempotency:
            raise Violation("I1", now_s, f"{self!r} is called {message.request} now")
        self.request = self.request or message.request

    def _on_delta(self, now_s: float, delta: Delta) -> None:
        if self.finish is not FinishReason.RUNNING:
            raise Violation("I1", now_s, f"{self!r} gets {list(delta.tokens)} after its end")
        if delta.prompt is not None:
            self._on_prompt(now_s, delta.prompt)
        if (
            delta.tokens
            and self.submit.sampling.prompt_logprobs is not None
            and self.scored < len(self.submit.tokens) - 1
        ):
            raise Violation("I1", now_s, f"{self!r} gets a token, and {self.scored} log-probabilities of its prompt")
        if wrong := wrong_tokens(self.expected, len(self.tokens), delta.tokens):
            raise Violation("I1", now_s, f"{self!r} {wrong}")
        self.tokens += delta.tokens
        self.finish, self.detail = delta.finish, delta.detail
        if self.is_done:
            self.ended_s = self.cluster.world.now_s

    def _on_prompt(self, now_s: float, found: PromptLogprobs) -> None:
        asked = list(enumerate(self.submit.tokens))[self.scored + 1 : self.scored + 1 + len(found)]
        due = [prompt_logprob(token, position) for position, token in asked]
        best = self.submit.sampling.prompt_logprobs
        if list(found.logprob) != due or len(found.top_token) != len(due) * (best or 0) or best is None:
            raise Violation("I1", now_s, f"{self!r} gets {list(found.logprob)} of its prompt where {due} was due")
        self.scored += len(found)

    def on_rejected(self, rejected: SubmitRejected) -> None:
        """Try again later where it is a passing refusal; else it is the end."""
        is_passing = rejected.code is RejectionCode.UNAVAILABLE or (
            self.request and rejected.code is RejectionCode.FULL
        )
        if is_passing and self.attempts < MOST_TRIES:
            self.door = None
            return self.cluster.world.call_later(max(RETRY_S, rejected.retry_after_s or 0.0), self.connect)
        self.rejected, self.ended_s = rejected, self.cluster.world.now_s
        return None


@dataclass(repr=False)
class LineClient(CampaignClient):
    """A line of a batch job: the part of its dispatcher `at` that waits for one answer, and dies with the process.

    As the door of batches does, it waits and asks again where the cluster has no room now; every other end is told to
    `on_end`, once.
    """

    at: Address = field(default_factory=lambda: Address("dispatcher", ""))
    on_end: "Callable[[LineClient], object]" = field(default=lambda client: None)

    def connect(self) -> None:
        """Submit to its dispatcher, which is gone for good when its process is."""
        if self.is_done:
            return
        if self.at not in self.cluster.cores or self.attempts >= MOST_TRIES:
            self.disconnect()
            self.on_end(self)
            return
        self.submit_at(self.at)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Handle an answer of its dispatcher, and tell when it was the last one."""
        was_done = self.is_done
        effects = super().receive(now_s, sender, message)
        if self.is_done and not was_done:
            self.cluster.world.call_later(0.0, lambda: self.on_end(self))
        return effects

    def on_rejected(self, rejected: SubmitRejected) -> None:
        """Wait and ask again where there is no room now; else it is the end."""
        if rejected.code not in WAITED_FOR:
            return super().on_rejected(rejected)
        self.door = None
        return self.cluster.world.call_later(max(RETRY_S, rejected.retry_after_s or 0.0), self.connect)


class CampaignClients:
    """All clients of a trial, with the batch jobs that were created."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.all: list[CampaignClient] = []
        self.jobs: list[CampaignJob] = []
        self.done: Counter[str] = Counter()
        self._cluster = cluster

    def arrivals(self, ask: PlannedRequest) -> list[tuple[float, Callable[[], None]]]:
        """The clients of a request: the times of their connects and disconnects, with the calls."""
        times_s = [ask.at_s] if ask.second_client_s is None else [ask.at_s, ask.at_s + ask.second_client_s]
        acts: list[tuple[float, Callable[[], None]]] = []
        for at_s in times_s:
            client = self._client(ask)
            acts.append((at_s, client.connect))
            if ask.disconnect_s is not None:
                acts.append((at_s + ask.disconnect_s, client.disconnect))
        return acts

    def duplicate(self, client: CampaignClient) -> CampaignClient:
        """Another client of the same request, for the other dispatcher."""
        twin = self._client(client.planned)
        twin.attempts = 1
        return twin

    def open(self) -> list[CampaignClient]:
        """The clients that wait for tokens."""
        return [client for client in self.all if client.attempts and not client.is_done]

    def all_done(self) -> bool:
        """Whether no client waits, and no batch job is open."""
        return all(client.is_done for client in self.all) and not any(job.record.is_open for job in self.jobs)

    def line(self, ask: PlannedRequest, at: Address, on_end: Callable[[LineClient], object]) -> LineClient:
        """A client for a line of a batch job on which the dispatcher `at` works."""
        number, submit, said = len(self.all), _submit(ask), _expected(ask)
        client = LineClient(ask, self._cluster, number, submit, said, at=at, on_end=on_end)
        self.all.append(client)
        return client

    def _client(self, ask: PlannedRequest) -> CampaignClient:
        self.all.append(CampaignClient(ask, self._cluster, len(self.all), _submit(ask), _expected(ask)))
        return self.all[-1]


def _submit(ask: PlannedRequest) -> Submit:
    name = {"idempotency": f"name {ask.number}", "digest": b"d"} if ask.named else {}
    return Submit(
        i32(ask.tokens),
        ask.max_tokens,
        SamplingParams(seed=ask.number, prompt_logprobs=ask.prompt_best),
        request_class=RequestClass.BATCH if ask.is_batch else RequestClass.INTERACTIVE,
        timeout_s=ask.timeout_s,
        tenant=ask.tenant,
        **name,  # type: ignore[arg-type]
    )


def _expected(ask: PlannedRequest) -> list[int]:
    return continuation(ask.tokens, ask.max_tokens, ask.number)
