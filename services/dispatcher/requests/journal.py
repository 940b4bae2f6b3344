"""The request table: every admitted request until its last token is delivered, with its tokens, state and attempt.

The authority on which tokens and which attempt of a request are valid. `TRANSITIONS` lists the allowed changes of
state. Knows no instance's load and no policy.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, islice

from dunlin.effects import Address
from dunlin.kv.prefix_hash import PrefixChain
from dunlin.messages.door import PromptLogprobs, Submit
from dunlin.messages.types import F32, I32, RequestClass, f32, i32
from dunlin.policies.starvation import Progress
from services.dispatcher.requests.deferred import DeferredRequests
from services.dispatcher.requests.queue import ArrivalOrder, QueueOrder, RequestQueue, TenantOrder
from services.dispatcher.requests.tenant_shares import TenantShares


class RequestState(IntEnum):
    """A request's state. ADOPTING: the instances are asked whether one of them runs it for another dispatcher.

    ENDED is never seen outside the journal, which forgets the request at once.
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
    """Log-probabilities of the generated tokens, kept for readers that join later; columns as in `Delta`."""

    logprobs: F32 = field(default_factory=f32)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)


@dataclass(slots=True)
class Request:
    """One request and the attempt that counts.

    Identity: `number` names it in this dispatcher and orders it by age, `key` is its public id. `tokens` is its
    sequence: the prompt, then every generated token that was delivered to its readers.

    Readers: `readers` are the client addresses that get its tokens; `reader_absence` counts the times when the last
    reader left, `adopted_elsewhere` those when another dispatcher adopted the request.

    Attempts: `attempt` counts dispatches; `instance` has the current one; `awaits_first_token`: no token of it has
    come. `lost_in_a_row` attempts were lost with their instance since the last token. `last_outcome` (instance, what
    happened) of the attempt before goes into the next one's reason. `excluded_instances` cannot hold the sequence, or
    have not its adapter (`lacks_adapter`: one of them said so).
    `suspicion`: see `Returned`. `migration_source` is (instance, attempt) of an older attempt that still holds the KV
    until the migration's target accepts. `first_dispatch_s` is the time of the first dispatch here, `token_s` that of
    the last token.

    Starvation: `progress` says since when it has had no new token, as far as it was looked at; `is_risen`: it is of the
    batch class and dispatched as an interactive one.

    Tenants' shares: `charged_tokens` were charged to its tenant when it was first dispatched (0: it is of the
    interactive class, or was not dispatched here).

    Groups: `is_deferred`: it waits for a group that holds it. `asked` is the manager that was asked for one, for
    `asked_attempt`, and has not been told that it is not needed any more. The current attempt is at the leader of
    `group` (0: at an instance alone); `group_refused`: the last one was refused there. `goes_alone`: it got no group,
    and fits one instance.

    Prefix cache: the first instance had KV of `cached_tokens` of the prompt; the current one was expected to have
    `expected_cached_tokens`. `generated_logprobs` is None unless the request asks for log-probabilities;
    `prompt_logprobs` alike, from the first that its client had not when it submitted the request.
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
    lacks_adapter: bool = False
    prefix_chains: PrefixChain = field(default_factory=PrefixChain)
    reader_absence: int = 0
    adopted_elsewhere: int = 0
    generated_logprobs: GeneratedLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    first_dispatch_s: float | None = None
    token_s: float | None = None
    is_risen: bool = False
    charged_tokens: int = 0
    is_deferred: bool = False
    goes_alone: bool = False
    group: int = 0
    group_refused: bool = False
    asked: Address | None = None
    asked_attempt: int = 0
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(len(self.tokens), self.submitted_s)

    @property
    def dispatched_as(self) -> RequestClass:
        """The class that it is queued and dispatched as: a batch request that rose counts as interactive."""
        return RequestClass.INTERACTIVE if self.is_risen else self.submit.request_class

    def rises_after_s(self, now_s: float) -> float | None:
        """Seconds until it is to be scheduled as an interactive request wherever it is; None: no such time is set."""
        if self.is_risen:
            return 0.0
        after_s = self.submit.rises_after_s
        return None if after_s is None else max(0.0, self.submitted_s + after_s - now_s)

    def waited_s(self, now_s: float) -> tuple[float, float]:
        """Seconds that its readers have waited for its next token: until it was dispatched first, and since then or
        since the last token.
        """
        if self.generated_tokens:
            return 0.0, now_s - (self.submitted_s if self.token_s is None else self.token_s)
        first_s = now_s if self.first_dispatch_s is None else self.first_dispatch_s
        return first_s - self.submitted_s, now_s - first_s

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; the generated tokens start at this position."""
        return len(self.submit.tokens)

    @property
    def is_plain_decode(self) -> bool:
        """Whether its next token needs no bookkeeping: not an attempt's first one, and without log-probabilities."""
        return self.state is RequestState.RUNNING and not self.awaits_first_token and self.generated_logprobs is None

    @property
    def scored(self) -> int:
        """The prompt tokens after the first whose log-probabilities are known, here or to its client."""
        return self.submit.scored + (len(self.prompt_logprobs) if self.prompt_logprobs is not None else 0)

    @property
    def lacks_scores(self) -> bool:
        """Whether log-probabilities of its prompt are wanted that have not come."""
        return self.prompt_logprobs is not None and self.scored < self.prompt_tokens - 1

    @property
    def generated_tokens(self) -> int:
        """Tokens delivered so far."""
        return len(self.tokens) - len(self.submit.tokens)

    @property
    def max_length(self) -> int:
        """Tokens that the sequence may grow to; one generated token where the request has no `max_tokens`."""
        return self.prompt_tokens + (self.max_tokens or 1)


class Journal:
    """Owns the requests, by number, key, idempotency key, reader and instance, and a queue of each class.

    `shares` has the tenants' weights, and what each has had of the batch work that was dispatched. `deferred` are the
    queued requests of which `needs_group` said, when they were queued, that no instance alone can hold them.
    `fresh`: the order of new interactive requests (None: by arrival).
    """

    def __init__(self, incarnation: int = 0, fresh: QueueOrder | None = None) -> None:
        self._incarnation = incarnation
        self._requests: dict[int, Request] = {}
        self._by_key: dict[str, Request] = {}
        self._by_idempotency: dict[tuple[str, str], Request] = {}
        self._by_reader: dict[Address, Request] = {}
        self._by_instance: dict[Address, dict[int, Request]] = {}
        self.shares = TenantShares()
        self.deferred = DeferredRequests()
        self.needs_group: Callable[[Request], bool] | None = None
        self._batch_order = TenantOrder(self.shares)
        self._queues = {
            RequestClass.INTERACTIVE: RequestQueue(ArrivalOrder() if fresh is None else fresh),
            RequestClass.BATCH: RequestQueue(self._batch_order),
        }
        self._numbers = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def queued(self) -> int:
        """How many wait for an instance or a group."""
        return sum(map(len, self._queues.values())) + len(self.deferred.by_number)

    def queued_of(self, request_class: RequestClass) -> int:
        """How many of that class wait for an instance, deferred ones not included."""
        return len(self._queues[request_class])

    def queued_against(self, submit: Submit) -> int:
        """How many queued requests count against the bound of the queue, for a new request.

        A tenant's batch requests may fill the queue, but they keep no other tenant out: one that has less than its part
        of it, a part like any other, finds room beyond the bound. What was dispatched before counts against all.
        """
        queued = self.queued_of(submit.request_class) + self.deferred.count_of(submit.request_class)
        if submit.request_class is not RequestClass.BATCH:
            return queued
        own, tenants = self._batch_order.tenant_part(submit.tenant)
        return min(queued, own * tenants + queued - len(self._batch_order))

    def add(self, client: Address, submit: Submit, now_s: float, may_be_held: bool = False) -> Request:
        """Add a new request: QUEUED, or (`may_be_held`: an instance may run it already) ADOPTING as attempt 1."""
        key = submit.key or self._new_key()
        self._numbers += bool(submit.key)
        tokens = submit.tokens + submit.received
        request = Request(self._numbers, key, [client], submit, now_s, tokens, submit.max_tokens)
        if submit.sampling.logprobs is not None:
            request.generated_logprobs = GeneratedLogprobs()
        if submit.sampling.prompt_logprobs is not None:
            request.prompt_logprobs = PromptLogprobs(submit.sampling.prompt_logprobs)
        self._requests[request.number] = self._by_key[key] = self._by_reader[client] = request
        if submit.idempotency:
            self._by_idempotency[submit.tenant, submit.idempotency] = request
        if may_be_held:
            request.state, request.attempt = RequestState.ADOPTING, 1
        elif self._is_to_be_deferred(request):
            self.deferred.add(request)
        else:
            self._queue_of(request).add(request)
        return request

    def add_reader(self, request: Request, client: Address) -> None:
        """`client` gets the request's tokens from now on."""
        request.readers.append(client)
        self._by_reader[client] = request

    def remove_reader(self, client: Address) -> None:
        """`client` gets no more tokens; its request stays, also without any reader."""
        request = self._by_reader.pop(client, None)
        if request is not None:
            request.readers.remove(client)
            request.reader_absence += not request.readers

    def adopt(self, request: Request, instance: Address, key: str) -> None:
        """`instance` runs the request under the public id `key`: the attempt of the adoption query is current there."""
        self._transition(request, RequestState.RUNNING)
        if key not in self._by_key:
            del self._by_key[request.key]
            request.key, self._by_key[key] = key, request
        request.instance = instance
        self._by_instance.setdefault(instance, {})[request.number] = request

    def reclaim(self, request: Request) -> None:
        """Another dispatcher adopted the request: it is ADOPTING again here, as the next attempt."""
        self._release(request)
        self._transition(request, RequestState.ADOPTING)
        request.attempt += 1
        request.adopted_elsewhere += 1
        request.migration_source = None

    def requeue_not_adopted(self, request: Request, lost: str) -> None:
        """No instance holds an ADOPTING request: it is queued ahead of new ones; `lost` says so in its next reason."""
        self._transition(request, RequestState.QUEUED)
        if request.submit.key or request.adopted_elsewhere:
            request.last_outcome = ("adopt", lost)
        self._requeue(request)

    def get(self, number: int) -> Request | None:
        """The request of that journal number; None if it has ended."""
        return self._requests.get(number)

    def by_key(self, key: str) -> Request | None:
        """The request of that public id; None if it has ended or is not known."""
        return self._by_key.get(key)

    def by_idempotency(self, tenant: str, idempotency: str) -> Request | None:
        """The tenant's request with that idempotency key; None if it has ended or is not known."""
        return self._by_idempotency.get((tenant, idempotency))

    def by_reader(self, client: Address) -> Request | None:
        """The request that this client address reads; None if it reads none."""
        return self._by_reader.get(client)

    def current_attempt(self, instance: Address, number: int, attempt: int) -> Request | None:
        """The request, if `attempt` at `instance` is its current attempt; else None: the message is stale.

        Every message of an instance about an attempt passes this fence.
        """
        request = self._requests.get(number)
        if request is None or request.attempt != attempt or request.instance != instance:
            return None
        return request

    def requests_at(self, instance: Address) -> Mapping[int, Request]:
        """The requests whose current attempt is at `instance`, by number."""
        return self._by_instance.get(instance, {})

    def ordered_requests_at(self, instance: Address) -> list[Request]:
        """The requests whose current attempt is at `instance`, oldest first."""
        held = self._by_instance.get(instance, {})
        return [held[number] for number in sorted(held)]

    def waiting(self, request_class: RequestClass, most: int) -> list[Request]:
        """The first `most` queued requests of the class, in the order in which they are dispatched."""
        return list(islice(self._queues[request_class], most))

    def all_waiting(self) -> list[Request]:
        """All queued requests: interactive ones first, each class in the order in which it is dispatched."""
        return [*chain.from_iterable(self._queues.values()), *self.deferred]

    def queued_in(self, request_class: RequestClass) -> "RequestQueue":
        """The queue of that class, to look through."""
        return self._queues[request_class]

    def rise(self, request: Request) -> None:
        """A queued batch request is dispatched as an interactive one until it ends, and ahead of new ones."""
        assert request.state is RequestState.QUEUED
        if request.is_deferred:
            request.is_risen = True
            return self.deferred.enter_again(request)
        self._queue_of(request).remove(request)
        request.is_risen = True
        return self._queue_of(request).requeue(request)

    def with_migration_source(self) -> list[Request]:
        """The queued requests whose migration source still holds their KV."""
        requeued = chain.from_iterable(queue.requeued for queue in self._queues.values())
        return [request for request in requeued if request.migration_source is not None]

    def defer(self, request: Request) -> None:
        """A queued request waits for a group from now on."""
        self._queue_of(request).remove(request)
        self.deferred.add(request)

    def queue_alone(self, request: Request) -> None:
        """A deferred request waits for an instance instead, ahead of new ones."""
        self.deferred.remove(request)
        request.goes_alone = True
        self._requeue(request)

    def dispatch(self, request: Request, instance: Address, group: int = 0) -> None:
        """Begin a new attempt of a queued request at `instance`, for its elastic group `group` if it is not 0."""
        self._transition(request, RequestState.DISPATCHED)
        self._charge(request)
        (self.deferred if request.is_deferred else self._queue_of(request)).remove(request)
        request.attempt += 1
        request.group = group
        request.awaits_first_token = True
        request.instance = instance
        self._by_instance.setdefault(instance, {})[request.number] = request

    def advance(self, request: Request, state: RequestState) -> bool:
        """Change to RUNNING or PREEMPTED at the same instance; False where `TRANSITIONS` does not allow it."""
        if state not in TRANSITIONS[request.state]:
            return False
        request.state = state
        return True

    def requeue(self, request: Request, lost: str) -> None:
        """The attempt is over and the request is not: it is queued again. `lost` says what happened to the attempt."""
        instance = self._release(request)
        self._transition(request, RequestState.QUEUED)
        request.expected_cached_tokens = 0
        request.last_outcome = (str(instance), lost)
        self._requeue(request)

    def remove(self, request: Request) -> Address | None:
        """Forget the request; the instance of its current attempt, None if it had none."""
        if request.state is RequestState.QUEUED:
            (self.deferred if request.is_deferred else self._queue_of(request)).remove(request)
        self.deferred.note_end(request)
        instance = self._release(request)
        self._transition(request, RequestState.ENDED)
        if request.charged_tokens:
            generated = request.generated_tokens
            self.shares.settle(request.submit.tenant, request.charged_tokens, request.prompt_tokens, generated)
        del self._requests[request.number]
        del self._by_key[request.key]
        name = (request.submit.tenant, request.submit.idempotency)
        if self._by_idempotency.get(name) is request:
            del self._by_idempotency[name]
        for reader in request.readers:
            del self._by_reader[reader]
        return instance

    def check_integrity(self) -> None:
        """Raise AssertionError unless the indexes, the queue and the requests' states agree."""
        queued = {number for number, request in self._requests.items() if request.state is RequestState.QUEUED}
        assert queued == {request.number for request in self.all_waiting()}
        assert len(queued) == self.queued
        for request_class, queue in self._queues.items():
            numbers = [request.number for request in queue.requeued]
            assert numbers == sorted(numbers)
            assert all(request.dispatched_as is request_class for request in queue)
        charged = Counter(one.submit.tenant for one in self._requests.values() if one.charged_tokens)
        self.shares.check_integrity(self._batch_order.counts(), charged)
        adopting = {number for number, request in self._requests.items() if request.state is RequestState.ADOPTING}
        readers = [reader for request in self._requests.values() for reader in request.readers]
        assert sorted(readers) == sorted(self._by_reader)
        assert {key: request.key for key, request in self._by_key.items()} == {key: key for key in self._by_key}
        assert len(self._by_key) == len(self._requests)
        assert all(request.number in self._requests for request in self._by_idempotency.values())
        assert all(self._by_instance.values()), "an instance that holds nothing is kept"
        held = {number for requests in self._by_instance.values() for number in requests}
        assert held == self._requests.keys() - queued - adopting
        for request in self._requests.values():
            assert (request.instance is None) == (request.state in (RequestState.QUEUED, RequestState.ADOPTING))

    def _new_key(self) -> str:
        """The next public id; one that a client made up for a request of its own is passed over."""
        self._numbers += 1
        while (key := f"req-{self._incarnation:x}-{self._numbers:x}") in self._by_key:
            self._numbers += 1
        return key

    def _charge(self, request: Request) -> None:
        """Charge a batch request to its tenant, when it is dispatched for the first time."""
        submit = request.submit
        if submit.request_class is RequestClass.BATCH and not request.charged_tokens:
            prompt = request.prompt_tokens
            request.charged_tokens = self.shares.expected_tokens(submit.tenant, prompt, submit.max_tokens)
            self.shares.charge(submit.tenant, request.charged_tokens)

    def _transition(self, request: Request, state: RequestState) -> None:
        assert state in TRANSITIONS[request.state], f"request {request.number}: {request.state.name} to {state.name}"
        request.state = state

    def _requeue(self, request: Request) -> None:
        if self._is_to_be_deferred(request):
            self.deferred.add(request)
        else:
            self._queue_of(request).requeue(request)

    def _is_to_be_deferred(self, request: Request) -> bool:
        return self.needs_group is not None and self.needs_group(request)

    def _queue_of(self, request: Request) -> RequestQueue:
        return self._queues[request.dispatched_as]

    def _release(self, request: Request) -> Address | None:
        instance, request.instance = request.instance, None
        if instance is not None:
            held = self._by_instance[instance]
            del held[request.number]
            if not held:
                del self._by_instance[instance]
        return instance
