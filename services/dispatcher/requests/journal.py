"""The request table: every admitted request until its last token is delivered, with its tokens, state and attempt.

The authority on which tokens and which attempt of a request are valid. Knows no instance's load and no policy.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice

from dunlin.effects import Address
from dunlin.messages.door import PromptLogprobs, Submit
from dunlin.messages.types import RequestClass
from services.dispatcher.requests.deferred import DeferredRequests
from services.dispatcher.requests.queue import ArrivalOrder, QueueOrder, RequestQueue, TenantOrder
from services.dispatcher.requests.request import TRANSITIONS, GeneratedLogprobs, Request, RequestState
from services.dispatcher.requests.steady_rows import SteadyRows
from services.dispatcher.requests.tenant_shares import TenantShares


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
        self._steady: dict[Address, SteadyRows] = {}
        self.shares = TenantShares()
        self.deferred = DeferredRequests()
        self.needs_group: Callable[[Request], bool] | None = None
        self._batch_order = TenantOrder(self.shares)
        self._queues = {
            RequestClass.INTERACTIVE: RequestQueue(ArrivalOrder() if fresh is None else fresh),
            RequestClass.BATCH: RequestQueue(self._batch_order),
        }
        self._numbers = 0
        self._adopting = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def queued(self) -> int:
        """How many wait for an instance or a group."""
        interactive, batch = self._queues.values()
        return interactive.count + batch.count + len(self.deferred.by_number)

    @property
    def adopting(self) -> int:
        """How many are ADOPTING: they wait for the instances' answers, and then perhaps in a queue."""
        return self._adopting

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
            self._adopting += 1
        else:
            self._add_new(request)
        return request

    def add_reader(self, request: Request, client: Address) -> None:
        """`client` gets the request's tokens from now on."""
        request.readers.append(client)
        request.leave_steady_rows()
        self._by_reader[client] = request

    def remove_reader(self, client: Address) -> None:
        """`client` gets no more tokens; its request stays, also without any reader."""
        request = self._by_reader.pop(client, None)
        if request is not None:
            request.readers.remove(client)
            request.leave_steady_rows()
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
        """No instance holds an ADOPTING request. One that its client resumes, or that ran before, is queued ahead of
        new ones, and `lost` says so in its next reason; any other is new.
        """
        self._transition(request, RequestState.QUEUED)
        if request.submit.key or request.adopted_elsewhere:
            request.last_outcome = ("adopt", lost)
            self._requeue(request)
        else:
            self._add_new(request)

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

    def steady_rows(self, instance: Address) -> SteadyRows | None:
        """The rows of the last tokens of `instance`, if the next ones may be of the same; None: look at each row."""
        rows = self._steady.get(instance)
        return rows if rows is not None and rows.is_current else None

    def keep_steady_rows(self, instance: Address, rows: SteadyRows) -> None:
        """The next tokens of `instance` may be of these rows, until a request of them changes."""
        self._steady[instance] = rows
        for request in rows.requests:
            request.steady_rows = rows

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
        request.leave_steady_rows()
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
        assert len(adopting) == self._adopting
        readers = [reader for request in self._requests.values() for reader in request.readers]
        assert sorted(readers) == sorted(self._by_reader)
        assert {key: request.key for key, request in self._by_key.items()} == {key: key for key in self._by_key}
        assert len(self._by_key) == len(self._requests)
        assert all(request.number in self._requests for request in self._by_idempotency.values())
        assert all(self._by_instance.values()), "an instance that holds nothing is kept"
        held = {number for requests in self._by_instance.values() for number in requests}
        assert held == self._requests.keys() - queued - adopting
        assert self._steady.keys() <= self._by_instance.keys(), "rows of an instance that holds nothing are kept"
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
        self._adopting += (state is RequestState.ADOPTING) - (request.state is RequestState.ADOPTING)
        request.state = state
        request.leave_steady_rows()

    def _add_new(self, request: Request) -> None:
        if self._is_to_be_deferred(request):
            self.deferred.add(request)
        else:
            self._queue_of(request).add(request)

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
                self._steady.pop(instance, None)
        return instance
