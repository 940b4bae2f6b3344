"""Load for a simulated cluster: a client for each job at its time, and what became of it.

A client behaves as the SDK does: refused for a moment, it asks again later; its dispatcher gone, it goes on at another
with what it has. A job is drawn from the workload when the one before was sent, and a client is gone when its request
has ended, so that memory holds what is under way and the records.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.door import Admitted, Delta, Rejected, Rejection, Submit
from dunlin.messages.types import Finish, Ints, RequestClass, Sampling, i32
from dunlin.workload.prompts import Job
from dunlin.workload.stats import Record
from simulator.cluster.world import World

LOAD = Address("load", "")
RETRY_S = 0.2
"""What a client waits before it asks again where it was not told for how long."""
GIVE_UP_S = 60.0
"""A client that nobody serves for so long gives up."""


@dataclass(frozen=True, slots=True)
class NextJobDue:
    """The next job's time has come."""


@dataclass(frozen=True, slots=True)
class ClientRetryDue:
    """A client's pause is over."""

    attempt: int


class LoadClient:
    """One client of one request. `record` is complete when `on_end` is called."""

    def __init__(self, load: "SimulatedLoad", address: Address, submit: Submit, record: Record) -> None:
        self._load = load
        self._address = address
        self._submit = submit
        self._record = record
        self._received = i32()
        self._attempt = 0
        self._patience_s = 0.0

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Anything that a door says."""
        if type(message) is Delta:
            return self._on_delta(now_s, message)
        if isinstance(message, Admitted):
            self._record.request = self._record.request or message.request
            self._patience_s = 0.0
            return []
        if isinstance(message, Rejected):
            return self._on_rejected(now_s, message)
        if isinstance(message, Joined):
            return [Send(sender, self._make_submit())]
        if isinstance(message, Gone):
            return self._pause(now_s, RETRY_S, "its dispatcher is gone")
        if isinstance(message, ClientRetryDue) and message.attempt == self._attempt:
            return self._retry(now_s)
        return []

    def _make_submit(self) -> Submit:
        if not self._record.request:
            return self._submit
        asked = self._submit
        return Submit(
            asked.tokens,
            asked.max_tokens,
            asked.sampling,
            asked.stop_ids,
            asked.request_class,
            asked.tenant,
            key=self._record.request,
            received=self._received,
        )

    def _on_delta(self, now_s: float, delta: Delta) -> list[Effect]:
        record = self._record
        self._received += delta.tokens
        for _ in delta.tokens:
            record.token_s.append(now_s - self._load.start_s)
        if delta.finish is not Finish.RUNNING:
            is_good = delta.finish in (Finish.LENGTH, Finish.STOP)
            self._end(now_s, "ok" if is_good else "error", delta.detail or ("" if is_good else delta.finish.name))
        return []

    def _on_rejected(self, now_s: float, rejected: Rejected) -> list[Effect]:
        if rejected.code is Rejection.UNAVAILABLE:
            return self._pause(now_s, rejected.retry_after_s or RETRY_S, rejected.detail)
        self._end(now_s, "refused" if rejected.code is Rejection.FULL else "error", rejected.detail)
        return []

    def _pause(self, now_s: float, pause_s: float, why: str) -> list[Effect]:
        if self._patience_s and now_s > self._patience_s:
            self._end(now_s, "error", why)
            return []
        self._patience_s = self._patience_s or now_s + GIVE_UP_S
        self._attempt += 1
        return [After(pause_s, ClientRetryDue(self._attempt))]

    def _retry(self, now_s: float) -> list[Effect]:
        if not self._load.connect(self._address):
            return self._pause(now_s, RETRY_S, "no dispatcher is there")
        return []

    def _end(self, now_s: float, outcome: str, detail: str) -> None:
        record = self._record
        record.outcome, record.detail = outcome, detail
        record.end_s = now_s - self._load.start_s
        record.tokens = list(self._received) if self._load.keep_tokens else []
        self._load.ended(self._address)


class SimulatedLoad:
    """Sends every job at its time to the dispatchers in turn, and keeps the records, in the order of sending.

    `doors` says which dispatchers there are. `records` of those that are under way are not complete.
    """

    def __init__(
        self,
        world: World,
        jobs: Iterator[Job],
        doors: Callable[[], list[Address]],
        keep_tokens: bool = False,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.records: list[Record] = []
        self.start_s = 0.0
        self.open = 0
        self.ended_total = 0
        self.is_exhausted = False
        self.keep_tokens = keep_tokens
        self._world = world
        self._jobs = jobs
        self._doors = doors
        self._on_end = on_end
        self._next: Job | None = None
        self._turns = 0

    @property
    def is_over(self) -> bool:
        """Whether every job has been sent and has ended."""
        return self.is_exhausted and self.open == 0

    def start(self) -> None:
        """The run begins now."""
        self.start_s = self._world.now_s
        self._world.add(LOAD, self)
        self._draw()
        self._world.post(LOAD, LOAD, NextJobDue(), 0.0 if self._next is None else self._next.at_s)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """The time of the next job."""
        while self._next is not None and self.start_s + self._next.at_s <= now_s:
            self._send(now_s, self._next)
            self._draw()
        return [After(self.start_s + self._next.at_s - now_s, NextJobDue())] if self._next is not None else []

    def connect(self, client: Address) -> bool:
        """Open a stream from a client to the dispatcher whose turn it is; False: there is none."""
        doors = self._doors()
        if not doors:
            return False
        self._turns += 1
        self._world.connect(client, doors[self._turns % len(doors)])
        return True

    def ended(self, client: Address) -> None:
        """A client's request is over."""
        self.open -= 1
        self.ended_total += 1
        self._world.kill(client, "")
        if self._on_end is not None:
            self._on_end()

    def _draw(self) -> None:
        self._next = next(self._jobs, None)
        self.is_exhausted = self._next is None

    def _send(self, now_s: float, job: Job) -> None:
        sent_s, times = now_s - self.start_s, array("d")
        record = Record(job.at_s, len(job.prompt), job.max_tokens, job.clipped, sent_s, times)
        number = len(self.records)
        self.records.append(record)
        client = Address("client", f"client-{number}")
        reader = LoadClient(self, client, _submit(job, number), record)
        self._world.add(client, reader)
        self.open += 1
        if not self.connect(client):
            self._world.post(client, client, Gone("no dispatcher is there"), 0.0)


def _submit(job: Job, number: int) -> Submit:
    seed = number if job.seed is None else job.seed
    is_batch = getattr(job, "label", "") == "batch"
    request_class = RequestClass.BATCH if is_batch else RequestClass.INTERACTIVE
    return Submit(_tokens(job.prompt), job.max_tokens, Sampling(seed=seed), request_class=request_class)


def _tokens(prompt: Ints) -> Ints:
    return prompt
