"""Copies of this node's regions that go to other nodes' kvstores: which, in what order, and what arrived.

One job per request and receiver: it offers the regions that are not there yet, a few at a time, and ends with how many
tokens from the first on lie there. Knows no socket, and of the origin of a job only the callback for its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.exchange import AcceptOffer, DropCopies, Offer, OfferRefused, RegionArrived, TransferAgent
from dunlin.messages.group import DIALING, DialPeer
from dunlin.messages.types import Priority
from services.kvstore.regions.catalog import RegionCatalog, RegionEntry, RegionState
from services.kvstore.transfer.transport_commands import TRANSPORT, PushRegion, RegionPayload, RegionPushed

WINDOW = 4
"""Regions of one job that are offered and have not arrived."""

RegionFilter = Callable[[RegionEntry], bool]
JobDone = Callable[[int, str], list[Effect]]
"""Called once: the number of tokens from the first on that lie at the receiver, and what stopped the rest."""
RegionId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CopyJobTimeout:
    """The job has made no progress for too long, unless a newer timer runs."""

    job: int
    counter: int


@dataclass(slots=True, eq=False)
class CopyJob:
    """Copies regions of one request to one kvstore. `offered` ones are under way, by ticket. `detail`: the first
    failure, after which nothing more is offered.
    """

    number: int
    key: str
    to: Address
    priority: Priority
    accepts: RegionFilter
    done: JobDone
    offered: dict[int, RegionEntry] = field(default_factory=dict)
    counter: int = 0
    detail: str = ""


class OutgoingCopies:
    """Owns the jobs, and the known copies at other kvstores."""

    def __init__(
        self, catalog: RegionCatalog, patience_s: float, most_jobs: int, agent: TransferAgent | None = None
    ) -> None:
        self._catalog = catalog
        self._timeout_s = patience_s
        self._max_jobs = most_jobs
        self._agent = agent
        self._jobs: dict[int, CopyJob] = {}
        self._tickets: dict[int, CopyJob] = {}
        self._unawaited: dict[int, tuple[Address, RegionEntry]] = {}  # of ended jobs: each may arrive all the same
        self._remote_copies: dict[str, dict[Address, dict[RegionId, None]]] = {}
        self._peers: dict[Address, None] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def is_busy(self, key: str, to: Address) -> bool:
        """Whether a job copies that request there."""
        return any(job.key == key and job.to == to for job in self._jobs.values())

    def start(self, key: str, to: Address, priority: Priority, choose: RegionFilter, over: JobDone) -> list[Effect]:
        """Bring the regions of `key` that `choose` takes to `to`."""
        if len(self._jobs) >= self._max_jobs:
            return over(0, f"{self._max_jobs} requests are being copied already")
        self._numbers += 1
        job = self._jobs[self._numbers] = CopyJob(self._numbers, key, to, priority, choose, over)
        reach: list[Effect] = [] if to in self._peers else [Send(DIALING, DialPeer(to))]
        return [*reach, *self._advance(job)]

    def on_peer_joined(self, peer: Address) -> list[Effect]:
        """A stream is open."""
        self._peers[peer] = None
        return self._each(peer, self._advance)

    def on_peer_gone(self, peer: Address) -> list[Effect]:
        """A stream ended: the copies there are out of reach."""
        self._peers.pop(peer, None)
        effects = self._each(peer, lambda job: self._fail(job, f"{peer.name} is gone"))
        self._unawaited = {ticket: (to, entry) for ticket, (to, entry) in self._unawaited.items() if to != peer}
        for there in self._remote_copies.values():
            there.pop(peer, None)
        return effects

    @handles
    def on_offer_accepted(self, now_s: float, sender: Address, message: AcceptOffer) -> list[Effect]:
        """The receiver reserved room: push the bytes."""
        job = self._find(sender, message.ticket)
        if job is None:
            return []
        entry = job.offered[message.ticket]
        goods = RegionPayload(entry.host, entry.request.region, entry.request.kv_dtype, entry.request.chain)
        push = PushRegion(
            message.ticket,
            sender,
            message.endpoint,
            message.token,
            message.handle,
            message.generation,
            goods,
            job.priority,
            message.agent,
        )
        return [Send(TRANSPORT, push)]

    @handles
    def on_offer_refused(self, now_s: float, sender: Address, message: OfferRefused) -> list[Effect]:
        """The receiver refused the offer."""
        self._unawaited.pop(message.ticket, None)
        job = self._find(sender, message.ticket)
        return self._fail(job, f"{sender.name} has no room") if job is not None else []

    @handles
    def on_region_pushed(self, now_s: float, carrier: Address, message: RegionPushed) -> list[Effect]:
        """The push ended, or failed; the receiver reports the arrival."""
        job = self._tickets.get(message.ticket)
        return self._fail(job, message.detail) if job is not None and message.detail else []

    @handles
    def on_region_arrived(self, now_s: float, sender: Address, message: RegionArrived) -> list[Effect]:
        """The receiver reports that a region arrived, or failed."""
        job = self._find(sender, message.ticket)
        if job is None:
            return self._on_late_arrival(sender, message)
        if message.detail:
            del self._tickets[message.ticket], job.offered[message.ticket]
            return self._fail(job, message.detail)
        entry = job.offered.pop(message.ticket)
        del self._tickets[message.ticket]
        self._copies_at(job)[entry.host.handle, entry.host.generation] = None
        return self._advance(job)

    def _on_late_arrival(self, sender: Address, message: RegionArrived) -> list[Effect]:
        """A region of an ended job arrived: record it, so that it can be released there."""
        late = self._unawaited.pop(message.ticket, None)
        if late is None or late[0] != sender or message.detail:
            return []
        entry = late[1]
        key = entry.request.key
        self._remote_copies.setdefault(key, {}).setdefault(sender, {})[entry.host.handle, entry.host.generation] = None
        return self.on_region_released(key)

    @handles
    def on_timeout(self, now_s: float, sender: Address, message: CopyJobTimeout) -> list[Effect]:
        """The job made no progress for too long: end it."""
        job = self._jobs.get(message.job)
        if job is None or job.counter != message.counter:
            return []
        return self._fail(job, f"nothing heard of {job.to.name} for {self._timeout_s:g} s")

    def on_region_released(self, key: str) -> list[Effect]:
        """A region of the request is gone here: copies elsewhere are not needed without an original.

        A copy of another node's is one only of what was sent on from it, or two nodes would keep each other's for ever.
        """
        there, here = self._remote_copies.get(key, {}), self._catalog.entries_of_key(key)
        over = [peer for peer, names in there.items() if not any(_is_original(entry, names) for entry in here)]
        drops = [Send(peer, DropCopies(key)) for peer in over if there.pop(peer) and peer in self._peers]
        if not there:
            self._remote_copies.pop(key, None)
        return [*drops]

    def _advance(self, job: CopyJob) -> list[Effect]:
        """Offer what comes next; end the job when nothing is left."""
        if job.to not in self._peers:
            return self._start_timer(job)
        effects: list[Effect] = []
        offered = {(entry.host.handle, entry.host.generation): None for entry in job.offered.values()}
        for entry in self._wanted(job):
            name = (entry.host.handle, entry.host.generation)
            if name in offered or name in self._copies_at(job):
                continue
            if job.detail or len(job.offered) >= WINDOW:
                break
            self._numbers += 1
            job.offered[self._numbers] = entry
            self._tickets[self._numbers] = job
            asked = replace(entry.request, priority=job.priority)  # the room there is for what the copy is for
            effects.append(Send(job.to, Offer(self._numbers, asked, entry.host.checksum, self._agent)))
        return [*effects, *self._start_timer(job)] if job.offered else self._finish(job)

    def _wanted(self, job: CopyJob) -> list[RegionEntry]:
        entries = [entry for entry in self._catalog.entries_of_key(job.key) if entry.state is RegionState.COMMITTED]
        return sorted((entry for entry in entries if job.accepts(entry)), key=lambda entry: entry.request.region.start)

    def _finish(self, job: CopyJob) -> list[Effect]:
        del self._jobs[job.number]
        tokens = 0
        for entry in self._wanted(job):
            if entry.request.region.start == tokens and (entry.host.handle, entry.host.generation) in self._copies_at(
                job
            ):
                tokens = entry.request.region.stop
        return [*self.on_region_released(job.key), *job.done(tokens, job.detail)]

    def _fail(self, job: CopyJob, detail: str) -> list[Effect]:
        """End the job: offer nothing more, and do not wait for regions under way."""
        job.detail = job.detail or detail
        for ticket, entry in job.offered.items():
            del self._tickets[ticket]
            self._unawaited[ticket] = (job.to, entry)
        job.offered.clear()
        return self._finish(job)

    def _copies_at(self, job: CopyJob) -> dict[RegionId, None]:
        return self._remote_copies.setdefault(job.key, {}).setdefault(job.to, {})

    def _find(self, sender: Address, ticket: int) -> CopyJob | None:
        job = self._tickets.get(ticket)
        return job if job is not None and job.to == sender else None

    def _each(self, peer: Address, do: Callable[[CopyJob], list[Effect]]) -> list[Effect]:
        effects: list[Effect] = []
        for job in [job for job in self._jobs.values() if job.to == peer]:
            effects += do(job)
        return effects

    def _start_timer(self, job: CopyJob) -> list[Effect]:
        job.counter += 1
        return [After(self._timeout_s, CopyJobTimeout(job.number, job.counter))]


def _is_original(entry: RegionEntry, names: dict[RegionId, None]) -> bool:
    """Whether an entry here keeps what lies elsewhere under these of our names."""
    return entry.writer.role == "instance" or (entry.host.handle, entry.host.generation) in names
