"""Every accepted request until its last token is delivered: the one place where tokens and attempts are true.

Knows no instance's load and no policy; what a request may do next stands in `NEXT`.
"""

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, islice

from dunlin.effects import Address
from dunlin.messages.door import Submit
from dunlin.messages.types import I32


class State(IntEnum):
    """Where a request is. `ENDED` is never seen from outside: the journal forgets the request."""

    QUEUED = 0
    OFFERED = 1
    RUNNING = 2
    PREEMPTED = 3
    ENDED = 4


NEXT: dict[State, tuple[State, ...]] = {
    State.QUEUED: (State.OFFERED, State.ENDED),
    State.OFFERED: (State.RUNNING, State.QUEUED, State.ENDED),
    State.RUNNING: (State.PREEMPTED, State.QUEUED, State.ENDED),
    State.PREEMPTED: (State.RUNNING, State.QUEUED, State.ENDED),
    State.ENDED: (),
}


@dataclass(slots=True)
class Request:
    """One request. `key` is its public id, `tokens` its sequence: the prompt, then every token delivered.

    `attempt` counts hand-outs, `losses` those that ended with their instance since the last token came. `unfit` names
    instances that cannot hold it; `lost` says what became of the last hand-out, for the next one's reason.
    `suspicion`: see `Returned`. `home` is an instance that still has an older attempt, which another was to take over.
    """

    number: int
    key: str
    client: Address
    submit: Submit
    submitted_s: float
    tokens: I32
    max_tokens: int | None
    state: State = State.QUEUED
    attempt: int = 0
    losses: int = 0
    suspicion: int = 0
    instance: Address | None = None
    lost: tuple[str, str] | None = None
    home: tuple[Address, int] | None = None
    unfit: list[Address] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """Where the generated tokens start."""
        return len(self.submit.tokens)

    @property
    def generated(self) -> int:
        """Tokens delivered so far."""
        return len(self.tokens) - len(self.submit.tokens)

    @property
    def longest(self) -> int:
        """Tokens that the sequence may grow to; without a limit of its own, the least that is worth running."""
        return self.prompt_tokens + (self.max_tokens or 1)


class Journal:
    """Requests by number, by client, by instance, and those that wait: once handed out before never handed out."""

    def __init__(self, incarnation: int = 0) -> None:
        self._incarnation = incarnation
        self._requests: dict[int, Request] = {}
        self._by_client: dict[Address, Request] = {}
        self._by_instance: dict[Address, dict[int, Request]] = {}
        self._again: list[int] = []
        self._fresh: OrderedDict[int, Request] = OrderedDict()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def queued(self) -> int:
        """How many wait for an instance."""
        return len(self._again) + len(self._fresh)

    def open(self, client: Address, submit: Submit, now_s: float) -> Request:
        """Journal a new request; it waits."""
        self._numbers += 1
        key = submit.key or f"req-{self._incarnation:x}-{self._numbers:x}"
        request = Request(self._numbers, key, client, submit, now_s, submit.tokens[:], submit.max_tokens)
        self._requests[request.number] = request
        self._by_client[client] = request
        self._fresh[request.number] = request
        return request

    def get(self, number: int) -> Request | None:
        """The request, if it has not ended."""
        return self._requests.get(number)

    def of_client(self, client: Address) -> Request | None:
        """The request that this client address submitted, if it has not ended."""
        return self._by_client.get(client)

    def current(self, instance: Address, number: int, attempt: int) -> Request | None:
        """The request, if `instance` holds just this attempt of it: the fence for everything an instance says."""
        request = self._requests.get(number)
        if request is None or request.attempt != attempt or request.instance != instance:
            return None
        return request

    def held_by(self, instance: Address) -> list[Request]:
        """What is handed out to `instance`, oldest first."""
        held = self._by_instance.get(instance, {})
        return [held[number] for number in sorted(held)]

    def waiting(self, most: int) -> list[Request]:
        """The first `most` that wait, in the order in which they are to be placed: oldest first among each kind."""
        again = (self._requests[number] for number in self._again)
        return list(islice(chain(again, self._fresh.values()), most))

    def away_from_home(self) -> list[Request]:
        """Those that wait and have a home: an instance that still has an older attempt of theirs."""
        again = [self._requests[number] for number in self._again]
        return [request for request in again if request.home is not None]

    def hand_out(self, request: Request, instance: Address) -> None:
        """A new attempt, at `instance`."""
        self._move(request, State.OFFERED)
        self._unqueue(request)
        request.attempt += 1
        request.instance = instance
        self._by_instance.setdefault(instance, {})[request.number] = request

    def advance(self, request: Request, state: State) -> bool:
        """RUNNING or PREEMPTED at the same instance; False where the table does not allow it."""
        if state not in NEXT[request.state]:
            return False
        request.state = state
        return True

    def take_back(self, request: Request, lost: str) -> None:
        """The hand-out is over without an end: the request waits again. `lost` says what became of it."""
        instance = self._release(request)
        self._move(request, State.QUEUED)
        request.lost = (str(instance), lost)
        insort(self._again, request.number)

    def end(self, request: Request) -> Address | None:
        """Forget the request; who held it."""
        if request.state is State.QUEUED:
            self._unqueue(request)
        instance = self._release(request)
        self._move(request, State.ENDED)
        del self._requests[request.number]
        del self._by_client[request.client]
        return instance

    def check_integrity(self) -> None:
        """Raise AssertionError unless every index tells the same story."""
        queued = {number for number, request in self._requests.items() if request.state is State.QUEUED}
        assert queued == {*self._again, *self._fresh}
        assert len(queued) == self.queued
        assert self._again == sorted(self._again)
        assert len(self._by_client) == len(self._requests)
        assert all(self._by_instance.values()), "an instance that holds nothing is kept"
        held = {number for requests in self._by_instance.values() for number in requests}
        assert held == self._requests.keys() - queued
        for request in self._requests.values():
            assert (request.instance is None) == (request.state is State.QUEUED)

    def _move(self, request: Request, state: State) -> None:
        assert state in NEXT[request.state], f"request {request.number}: {request.state.name} to {state.name}"
        request.state = state

    def _unqueue(self, request: Request) -> None:
        if self._fresh.pop(request.number, None) is None:
            self._again.remove(request.number)

    def _release(self, request: Request) -> Address | None:
        instance, request.instance = request.instance, None
        if instance is not None:
            held = self._by_instance[instance]
            del held[request.number]
            if not held:
                del self._by_instance[instance]
        return instance
