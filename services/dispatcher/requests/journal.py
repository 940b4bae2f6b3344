"""Every accepted request until its last token is delivered: the one place where tokens and attempts are true.

Knows no instance's load and no policy; what a request may do next stands in `TRANSITIONS`.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, islice

from dunlin.effects import Address
from dunlin.kv.prefix_hash import PrefixChain
from dunlin.messages.door import Submit
from dunlin.messages.types import F32, I32, f32, i32


class RequestState(IntEnum):
    """Where a request is. ASKING: instances are asked whether they hold it already.

    `ENDED` is never seen from outside: the journal forgets the request.
    """

    QUEUED = 0
    DISPATCHED = 1
    RUNNING = 2
    PREEMPTED = 3
    ENDED = 4
    ADOPTING = 5


TRANSITIONS: dict[RequestState, tuple[RequestState, ...]] = {
    RequestState.QUEUED: (RequestState.DISPATCHED, RequestState.ENDED),
    RequestState.DISPATCHED: (RequestState.RUNNING, RequestState.QUEUED, RequestState.ADOPTING, RequestState.ENDED),
    RequestState.RUNNING: (RequestState.PREEMPTED, RequestState.QUEUED, RequestState.ADOPTING, RequestState.ENDED),
    RequestState.PREEMPTED: (RequestState.RUNNING, RequestState.QUEUED, RequestState.ADOPTING, RequestState.ENDED),
    RequestState.ENDED: (),
    RequestState.ADOPTING: (RequestState.RUNNING, RequestState.QUEUED, RequestState.ENDED),
}


@dataclass(slots=True)
class GeneratedLogprobs:
    """Log-probabilities of the tokens generated, for a reader who comes later; columns as in `Delta`."""

    logprobs: F32 = field(default_factory=f32)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)


@dataclass(slots=True)
class Request:
    """One request. `key` is its public id, `tokens` its sequence: the prompt, then every token delivered.

    `awaited`: no token of this attempt has come yet. `readers` are the clients that get its tokens; `absence` numbers
    the times when the last of them left, `taken` those when another dispatcher adopted it. `scores` is None unless
    log-probabilities are asked for. `attempt` counts hand-outs, `losses` those that ended with their instance since the
    last token came. `unfit` names instances that cannot hold it; `lost` says what became of the last hand-out, for the
    next one's reason. `suspicion`: see `Returned`. `home` is an instance that still has an older attempt, which another
    was to take over.
    `placed_s` is when it was first handed out here.
    `cached_tokens` of the prompt were held already by the instance that began it; `expected_tokens` were thought to be
    held by the one that it was handed to last.
    """

    number: int
    key: str
    readers: list[Address]
    submit: Submit
    submitted_s: float
    tokens: I32
    max_tokens: int | None
    state: RequestState = RequestState.QUEUED
    attempt: int = 0
    lost_in_a_row: int = 0
    cached_tokens: int = 0
    expected_cached_tokens: int = 0
    suspicion: int = 0
    awaits_first_token: bool = True
    instance: Address | None = None
    last_outcome: tuple[str, str] | None = None
    migration_source: tuple[Address, int] | None = None
    excluded_instances: list[Address] = field(default_factory=list)
    prefix_chains: PrefixChain = field(default_factory=PrefixChain)
    reader_absence: int = 0
    adopted_elsewhere: int = 0
    generated_logprobs: GeneratedLogprobs | None = None
    first_dispatch_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Where the generated tokens start."""
        return len(self.submit.tokens)

    @property
    def is_plain_decode(self) -> bool:
        """Whether the next token of its attempt is nothing but one token more."""
        return self.state is RequestState.RUNNING and not self.awaits_first_token and self.generated_logprobs is None

    @property
    def generated_tokens(self) -> int:
        """Tokens delivered so far."""
        return len(self.tokens) - len(self.submit.tokens)

    @property
    def max_length(self) -> int:
        """Tokens that the sequence may grow to; without a limit of its own, the least that is worth running."""
        return self.prompt_tokens + (self.max_tokens or 1)


class Journal:
    """Requests by number, key, name, reader and instance, and those that wait: handed out before ahead of new ones."""

    def __init__(self, incarnation: int = 0) -> None:
        self._incarnation = incarnation
        self._requests: dict[int, Request] = {}
        self._by_key: dict[str, Request] = {}
        self._by_idempotency: dict[tuple[str, str], Request] = {}
        self._by_reader: dict[Address, Request] = {}
        self._by_instance: dict[Address, dict[int, Request]] = {}
        self._requeued: list[int] = []
        self._fresh: OrderedDict[int, Request] = OrderedDict()
        self._numbers = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def queued(self) -> int:
        """How many wait for an instance."""
        return len(self._requeued) + len(self._fresh)

    def add(self, client: Address, submit: Submit, now_s: float, asks: bool = False) -> Request:
        """Journal a new request; it waits for an instance or (`asks`), as attempt 1, for one that holds it already."""
        key = submit.key or self._new_key()
        self._numbers += bool(submit.key)
        tokens = submit.tokens + submit.received
        request = Request(self._numbers, key, [client], submit, now_s, tokens, submit.max_tokens)
        if submit.sampling.logprobs is not None:
            request.generated_logprobs = GeneratedLogprobs()
        self._requests[request.number] = self._by_key[key] = self._by_reader[client] = request
        if submit.idempotency:
            self._by_idempotency[submit.tenant, submit.idempotency] = request
        if asks:
            request.state, request.attempt = RequestState.ADOPTING, 1
        else:
            self._fresh[request.number] = request
        return request

    def add_reader(self, request: Request, client: Address) -> None:
        """One reader more."""
        request.readers.append(client)
        self._by_reader[client] = request

    def remove_reader(self, client: Address) -> None:
        """One reader less; the request stays."""
        request = self._by_reader.pop(client, None)
        if request is not None:
            request.readers.remove(client)
            request.reader_absence += not request.readers

    def adopt(self, request: Request, instance: Address, key: str) -> None:
        """`instance` holds it, under this key: its attempt is the one that asked."""
        self._transition(request, RequestState.RUNNING)
        if key not in self._by_key:
            del self._by_key[request.key]
            request.key, self._by_key[key] = key, request
        request.instance = instance
        self._by_instance.setdefault(instance, {})[request.number] = request

    def reclaim(self, request: Request) -> None:
        """Another dispatcher has it now: whoever holds it is asked for it, as the next attempt."""
        self._release(request)
        self._transition(request, RequestState.ADOPTING)
        request.attempt += 1
        request.adopted_elsewhere += 1
        request.migration_source = None

    def requeue_not_adopted(self, request: Request, lost: str) -> None:
        """Nobody holds it: it waits like one that was lost, which it is, or was never handed out."""
        self._transition(request, RequestState.QUEUED)
        if request.submit.key or request.adopted_elsewhere:
            request.last_outcome = ("adopt", lost)
        insort(self._requeued, request.number)

    def get(self, number: int) -> Request | None:
        """The request, if it has not ended."""
        return self._requests.get(number)

    def by_key(self, key: str) -> Request | None:
        """The request of that public id, if it has not ended."""
        return self._by_key.get(key)

    def by_idempotency(self, tenant: str, idempotency: str) -> Request | None:
        """The request that the tenant named so, if it has not ended."""
        return self._by_idempotency.get((tenant, idempotency))

    def by_reader(self, client: Address) -> Request | None:
        """The request that this client address reads, if it has not ended."""
        return self._by_reader.get(client)

    def current_attempt(self, instance: Address, number: int, attempt: int) -> Request | None:
        """The request, if `instance` holds just this attempt of it: the fence for everything an instance says."""
        request = self._requests.get(number)
        if request is None or request.attempt != attempt or request.instance != instance:
            return None
        return request

    def requests_at(self, instance: Address) -> Mapping[int, Request]:
        """What is handed out to `instance` now, by number."""
        return self._by_instance.get(instance, {})

    def ordered_requests_at(self, instance: Address) -> list[Request]:
        """What is handed out to `instance`, oldest first."""
        held = self._by_instance.get(instance, {})
        return [held[number] for number in sorted(held)]

    def waiting(self, most: int) -> list[Request]:
        """The first `most` that wait, in the order in which they are to be placed: oldest first among each kind."""
        again = (self._requests[number] for number in self._requeued)
        return list(islice(chain(again, self._fresh.values()), most))

    def with_migration_source(self) -> list[Request]:
        """Those that wait and have a home: an instance that still has an older attempt of theirs."""
        again = [self._requests[number] for number in self._requeued]
        return [request for request in again if request.migration_source is not None]

    def dispatch(self, request: Request, instance: Address) -> None:
        """A new attempt, at `instance`."""
        self._transition(request, RequestState.DISPATCHED)
        self._unqueue(request)
        request.attempt += 1
        request.awaits_first_token = True
        request.instance = instance
        self._by_instance.setdefault(instance, {})[request.number] = request

    def advance(self, request: Request, state: RequestState) -> bool:
        """RUNNING or PREEMPTED at the same instance; False where the table does not allow it."""
        if state not in TRANSITIONS[request.state]:
            return False
        request.state = state
        return True

    def requeue(self, request: Request, lost: str) -> None:
        """The hand-out is over without an end: the request waits again. `lost` says what became of it."""
        instance = self._release(request)
        self._transition(request, RequestState.QUEUED)
        request.expected_cached_tokens = 0
        request.last_outcome = (str(instance), lost)
        insort(self._requeued, request.number)

    def remove(self, request: Request) -> Address | None:
        """Forget the request; who held it."""
        if request.state is RequestState.QUEUED:
            self._unqueue(request)
        instance = self._release(request)
        self._transition(request, RequestState.ENDED)
        del self._requests[request.number]
        del self._by_key[request.key]
        name = (request.submit.tenant, request.submit.idempotency)
        if self._by_idempotency.get(name) is request:
            del self._by_idempotency[name]
        for reader in request.readers:
            del self._by_reader[reader]
        return instance

    def check_integrity(self) -> None:
        """Raise AssertionError unless every index tells the same story."""
        queued = {number for number, request in self._requests.items() if request.state is RequestState.QUEUED}
        assert queued == {*self._requeued, *self._fresh}
        assert len(queued) == self.queued
        assert self._requeued == sorted(self._requeued)
        asking = {number for number, request in self._requests.items() if request.state is RequestState.ADOPTING}
        readers = [reader for request in self._requests.values() for reader in request.readers]
        assert sorted(readers) == sorted(self._by_reader)
        assert {key: request.key for key, request in self._by_key.items()} == {key: key for key in self._by_key}
        assert len(self._by_key) == len(self._requests)
        assert all(request.number in self._requests for request in self._by_idempotency.values())
        assert all(self._by_instance.values()), "an instance that holds nothing is kept"
        held = {number for requests in self._by_instance.values() for number in requests}
        assert held == self._requests.keys() - queued - asking
        for request in self._requests.values():
            assert (request.instance is None) == (request.state in (RequestState.QUEUED, RequestState.ADOPTING))

    def _new_key(self) -> str:
        """The next public id; one that a client made up for a request of its own is passed over."""
        self._numbers += 1
        while (key := f"req-{self._incarnation:x}-{self._numbers:x}") in self._by_key:
            self._numbers += 1
        return key

    def _transition(self, request: Request, state: RequestState) -> None:
        assert state in TRANSITIONS[request.state], f"request {request.number}: {request.state.name} to {state.name}"
        request.state = state

    def _unqueue(self, request: Request) -> None:
        if self._fresh.pop(request.number, None) is None:
            self._requeued.remove(request.number)

    def _release(self, request: Request) -> Address | None:
        instance, request.instance = request.instance, None
        if instance is not None:
            held = self._by_instance[instance]
            del held[request.number]
            if not held:
                del self._by_instance[instance]
        return instance
