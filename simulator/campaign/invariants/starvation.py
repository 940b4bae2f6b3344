"""I12: batch work that gets no further for longer than its bound rises, within its share, and goes before younger chat.

Its own account of how long each request has stalled never counts more than the core does: the core sees progress at
the first message that it handles an interval of its looks later, so that is where a stall begins here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Accepted, Cancel, Place, Tokens
from dunlin.messages.door import Submit
from dunlin.messages.engine import Open, StepDone
from dunlin.messages.fleet import FleetView
from dunlin.messages.group import OpenGuest, group_of
from dunlin.messages.lifecycle import RisenInQueue
from dunlin.messages.types import RequestClass
from services.dispatcher.core import DispatcherCore
from services.dispatcher.requests.request import Request, RequestState
from services.instance.core import InstanceCore
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

LOOKED_AT = (Place, Cancel, StepDone, FleetView, Tokens, Submit, Accepted)
"""Messages after which a core looks at its batch work, if an interval has passed since it did."""

Key = tuple[Address | None, int, int]
Item = tuple[Key, int]
"""A batch request that gives way, by (dispatcher, number, attempt), and how far it is, in tokens."""


LOOK_S, LOOKS = 1.0, 8
"""A core looks through its batch work at least once in so many seconds, and so often within the bound."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The starvation bound of a role, and the share of those that may have risen."""

    wait_s: float
    share: float

    @property
    def look_s(self) -> float:
        """Seconds between two looks of a core at most."""
        return min(LOOK_S, self.wait_s / LOOKS)

    def most(self, of: int) -> int:
        """How many may have risen at a time."""
        return max(1, int(self.share * of))


@dataclass(slots=True)
class Stall:
    """A request at `done` tokens since `first_s` or longer; the core has seen that at `since_s` at the latest."""

    done: int
    first_s: float
    since_s: float | None = None


@dataclass(slots=True)
class ProcessAccount:
    """What was seen of one process: the stalls of its batch work, and when the share was last used up."""

    stalls: dict[Key, Stall] = field(default_factory=dict)
    full_s: float = float("-inf")

    def look(self, items: Iterable[Item], now_s: float, interval_s: float) -> None:
        """Take in how far each is now."""
        stalls: dict[Key, Stall] = {}
        for key, done in items:
            stall = self.stalls.get(key)
            if stall is None or done > stall.done:
                stall = Stall(done, now_s)
            elif stall.since_s is None and now_s >= stall.first_s + interval_s:
                stall.since_s = now_s
            stalls[key] = stall
        self.stalls = stalls


class StarvationWatcher(InvariantWatcher):
    """I12: no batch request stalls for longer than its bound while the share of those that rose has room."""

    invariant = "I12"
    roles = ("dispatcher", "instance")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        dispatcher, instance = cluster.spec.dispatcher_config(), cluster.spec.instance_config("")
        at_dispatchers, at_instances = dispatcher.starvation, instance.starvation
        self._bounds = {
            "dispatcher": Bound(at_dispatchers.batch_wait_s, at_dispatchers.risen_share),
            "instance": Bound(at_instances.batch_wait_s, at_instances.risen_share),
        }
        self._max_running = instance.scheduler.max_running
        self._accounts: dict[Address, ProcessAccount] = {}
        self._waited: set[Key] = set()
        self._had_slots: set[Key] = set()
        """Of the receiver, before the event: the sequences that waited, and those that have or had slots."""
        self._dispatched = 0

    def before(self, event: Delivery) -> None:
        core = self.cluster.core(event.to)
        if not self._bounds[event.to.role].wait_s:
            return
        if isinstance(core, InstanceCore):
            waited = [one for one in core.sequences if one.state is SequenceState.WAITING]
            self._waited = {_key(one) for one in waited}
            self._had_slots = {_key(one) for one in core.sequences} - {_key(one) for one in waited if not one.preempted}
            self._note_share(event.to, core.sequences)
        elif isinstance(core, DispatcherCore):
            self._dispatched = len(core.journal) - core.journal.queued
            self._note_share(event.to, core.journal)

    def after(self, event: Delivery) -> None:
        bound, core = self._bounds[event.to.role], self.cluster.core(event.to)
        if core is None or not bound.wait_s:
            return
        account = self._accounts.setdefault(event.to, ProcessAccount())
        now_s = self.cluster.world.clock_s(event.to)
        risen = _risen(core.sequences if isinstance(core, InstanceCore) else core.journal)
        if isinstance(core, InstanceCore) and risen > bound.most(self._max_running):
            raise self.fail(f"{event.to}: {risen} sequences have risen, and {bound.most(self._max_running)} may")
        # One may always rise; the share of an instance's slots, or of what was dispatched at that moment, forbids more.
        if risen:
            account.full_s = now_s
        if isinstance(event.message, LOOKED_AT):
            items = _sequences(core) if isinstance(core, InstanceCore) else _requests(core)
            account.look(items, now_s, bound.look_s)
            if now_s - account.full_s > bound.look_s:
                self._check_stalls(event.to, account, bound, now_s)

    def _note_share(self, address: Address, items: Iterable[Sequence] | Iterable[Request]) -> None:
        """Until this event at the least the share was used up, if any has risen: the event may end that one."""
        if address in self._accounts and _risen(items):
            self._accounts[address].full_s = self.cluster.world.clock_s(address)

    def _check_stalls(self, address: Address, account: ProcessAccount, bound: Bound, now_s: float) -> None:
        for key, stall in account.stalls.items():
            since_s = now_s if stall.since_s is None else stall.since_s
            if now_s - since_s > bound.wait_s + bound.look_s:
                core = self.cluster.core(address)
                if isinstance(core, InstanceCore) and not core.report().ready:
                    return self.excuse("batch work does not rise while there is no engine")
                raise self.fail(f"{address}: {key} has stalled for {now_s - since_s:.2f} s, and does not rise")

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        if isinstance(message, RisenInQueue):
            self._is_share_kept(sender)
        elif isinstance(message, Place):
            self._is_first(sender, to, message)
        elif isinstance(message, Open) and sender.role == "instance":
            self._is_first_in_line(sender, message)
        elif isinstance(message, OpenGuest):
            self._is_first_in_group(sender, message)

    def _is_share_kept(self, dispatcher: Address) -> None:
        journal = self.cluster.core(dispatcher).journal
        # The event may have ended attempts before the rise, and begun some after it.
        dispatched = max(self._dispatched, len(journal) - journal.queued)
        risen, most = _risen(journal), self._bounds["dispatcher"].most(dispatched)
        if risen > most:
            raise self.fail(f"{dispatcher}: {risen} requests have risen, and {most} may")

    def _is_first(self, dispatcher: Address, instance: Address, place: Place) -> None:
        """Check that no starved request waits that the instance could have taken instead of a new interactive one."""
        # The order of those that need a group is the manager's.
        if place.request_class is RequestClass.BATCH or place.attempt > 1 or place.handle or place.group:
            return
        longest = place.prompt_tokens + place.max_tokens
        for request in self.cluster.core(dispatcher).journal.all_waiting():
            fits = len(request.tokens) <= len(place.tokens) and request.max_length <= longest
            if request.is_risen and fits and instance not in request.excluded_instances:
                raise self.fail(f"{dispatcher} dispatches {place.request} before {request}, which has risen")

    def _is_first_in_group(self, leader: Address, opened: OpenGuest) -> None:
        """Check that no starved request waits for room in its group, and waited, while a younger one starts."""
        core = self.cluster.core(leader)
        spread = core.led_group.spreads.by_number(opened.sequence)
        if spread is None or spread.sequence.is_batch or _key(spread.sequence) in self._had_slots:
            return
        for other in core.led_group.spreads.waiting():
            if other.sequence.is_risen and other.turn < spread.turn and _key(other.sequence) in self._waited:
                raise self.fail(f"{leader} starts {spread.sequence.name} before {other.sequence.name}, which has risen")

    def _is_first_in_line(self, instance: Address, opened: Open) -> None:
        """Check that no starved sequence waits, and waited, while a younger interactive one starts."""
        if group_of(opened.sequence):
            return  # a guest: see `_is_first_in_group`
        sequences = self.cluster.core(instance).sequences
        started = sequences.by_number(opened.sequence)
        if started is None or started.is_batch or started.preempted or started.place.handle:
            return
        if _key(started) in self._had_slots:
            return  # it goes on, perhaps in another engine
        for other in sequences.waiting():
            if other.is_risen and other.turn < started.turn and not other.is_claiming and _key(other) in self._waited:
                raise self.fail(f"{instance} starts {started.name} before {other.name}, which has risen")


def _key(sequence: Sequence) -> Key:
    return sequence.dispatcher, sequence.place.request, sequence.place.attempt


def _risen(all_of_them: Iterable[Sequence] | Iterable[Request]) -> int:
    return sum(one.is_risen for one in all_of_them)


def _sequences(core: InstanceCore) -> list[Item]:
    """What had KV when it was preempted was progress, even if it came back and was preempted in one event."""
    going = (SequenceState.ENDING, SequenceState.LEAVING)
    batch = [one for one in core.sequences if one.gives_way and one.state not in going]
    return [(_key(one), len(one.tokens) + max(one.valid, one.kv_tokens)) for one in batch]


def _requests(core: DispatcherCore) -> list[Item]:
    batch = [one for one in core.journal if one.submit.request_class is RequestClass.BATCH and not one.is_risen]
    return [((None, one.number, 0), len(one.tokens)) for one in batch if one.state is RequestState.QUEUED]
