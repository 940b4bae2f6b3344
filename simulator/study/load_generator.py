"""An open-loop load for a simulated cluster: one client per job, sent at its time, and a record of each.

A client behaves as the SDK does: it retries after `UNAVAILABLE`, and resumes at another dispatcher when its own is
lost. A job is drawn from the workload when the one before was sent, and a client is removed when its request ended, so
memory holds the open requests and the records.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.door import Admitted, Delta, RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import FinishReason, RequestClass, SamplingParams, i32
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job
from simulator.cluster.world import World

LOAD = Address("load", "")
RETRY_S = 0.2
"""Seconds before a retry without a `retry_after_s`."""
_OUTCOMES = {FinishReason.LENGTH: "ok", FinishReason.STOP: "ok", FinishReason.DEADLINE: "expired"}
GIVE_UP_S = 60.0
"""Seconds without service after which a client gives up."""


@dataclass(frozen=True, slots=True)
class NextJobDue:
    """Timer: the next job is due."""


@dataclass(frozen=True, slots=True)
class ClientRetryDue:
    """Timer: the client retries; stale if it is about an older `attempt`."""

    attempt: int


class LoadClient:
    """The client of one request; it completes the request's `record`."""

    def __init__(self, load: "SimulatedLoad", address: Address, submit: Submit, record: RequestRecord) -> None:
        self._load = load
        self._address = address
        self._submit = submit
        self._record = record
        self._received = i32()
        self._attempt = 0
        self._patience_s = 0.0

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Handle an answer of a dispatcher, or the retry timer."""
        if type(message) is not Delta:
            return self._on_other(now_s, sender, message)
        tokens, at_s = message.tokens, now_s - self._load.start_s
        self._received.extend(tokens)
        if len(tokens) == 1:
            self._record.token_s.append(at_s)
        else:
            self._record.token_s += [at_s] * len(tokens)
        if message.finish is not FinishReason.RUNNING:
            outcome = _OUTCOMES.get(message.finish, "error")
            self._end(now_s, outcome, message.detail or ("" if outcome == "ok" else message.finish.name))
        return []

    def _on_other(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Admitted):
            self._record.request = self._record.request or message.request
            self._patience_s = 0.0
            return []
        if isinstance(message, SubmitRejected):
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

    def _on_rejected(self, now_s: float, rejected: SubmitRejected) -> list[Effect]:
        if rejected.code is RejectionCode.UNAVAILABLE:
            return self._pause(now_s, rejected.retry_after_s or RETRY_S, rejected.detail)
        self._end(now_s, "refused" if rejected.code is RejectionCode.FULL else "error", rejected.detail)
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
    """Sends every job at its time to the dispatchers in turn, and keeps the records, by the order of sending.

    `doors()`: the dispatchers' addresses. `records` of open requests are not complete. `open` counts open requests.
    `end_token` ends the answers of jobs that have a `bound`.
    """

    def __init__(
        self,
        world: World,
        jobs: Iterator[Job],
        doors: Callable[[], list[Address]],
        keep_tokens: bool = False,
        on_end: Callable[[], None] | None = None,
        end_token: int = 0,
    ) -> None:
        self.records: list[RequestRecord] = []
        self.start_s = 0.0
        self.open = 0
        self.ended_total = 0
        self.is_exhausted = False
        self.keep_tokens = keep_tokens
        self._world = world
        self._jobs = jobs
        self._doors = doors
        self._on_end = on_end
        self._end_token = end_token
        self._next: Job | None = None
        self._turns = 0

    @property
    def is_over(self) -> bool:
        """Whether every job was sent and every request ended."""
        return self.is_exhausted and self.open == 0

    def start(self) -> None:
        """Start the load at the world's time."""
        self.start_s = self._world.now_s
        self._world.add(LOAD, self)
        self._draw()
        self._world.post(LOAD, LOAD, NextJobDue(), 0.0 if self._next is None else self._next.at_s)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Send the jobs that are due."""
        while self._next is not None and self.start_s + self._next.at_s <= now_s:
            self._send(now_s, self._next)
            self._draw()
        return [After(self.start_s + self._next.at_s - now_s, NextJobDue())] if self._next is not None else []

    def connect(self, client: Address) -> bool:
        """Connect a client to the next dispatcher in turn; False: there is none."""
        doors = self._doors()
        if not doors:
            return False
        self._turns += 1
        self._world.connect(client, doors[self._turns % len(doors)])
        return True

    def ended(self, client: Address) -> None:
        """Remove a client whose request ended."""
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
        record = RequestRecord(job.at_s, len(job.prompt), job.max_tokens, job.clipped, sent_s, times)
        number = len(self.records)
        self.records.append(record)
        client = Address("client", f"client-{number}")
        reader = LoadClient(self, client, _submit(job, number, self._end_token), record)
        self._world.add(client, reader)
        self.open += 1
        if not self.connect(client):
            self._world.post(client, client, Gone("no dispatcher is there"), 0.0)


def _submit(job: Job, number: int, end_token: int) -> Submit:
    seed = number if job.seed is None else job.seed
    is_batch = job.label == "batch"
    request_class = RequestClass.BATCH if is_batch else RequestClass.INTERACTIVE
    bound = job.bound
    return Submit(
        job.prompt,
        job.max_tokens if bound is None else bound,
        SamplingParams(temperature=0.0 if job.seed is None else 1.0, seed=seed),
        i32() if bound is None else i32([end_token]),
        request_class,
    )
