"""Requests that crash the engine that computes them, and how many engines they may: I12."""

from collections import Counter
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.dispatch import Returned
from dunlin.messages.group import GuestsLost, OpenGuest
from services.dispatcher.core import DispatcherCore
from services.instance.core import InstanceCore
from services.instance.group.guests import Guest
from services.instance.group.member_step import named_guests
from services.instance.sequence.sequence import Sequence
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

MOST_ALONE = 2
"""Engines that a request may crash while it runs alone, in one attempt
(services/instance/sequence/crash_suspects.py)."""


ENDED_BEFORE = "a leader hears of a crash after its group has ended"
NEVER_SAID = "a member leaves a group that ends while its engine computes the exchange that crashes it"
NOT_RETURNED = "a dispatcher loses an attempt without hearing what its request crashed"
"""Why no process could know of a crash in time."""


@dataclass(frozen=True, slots=True)
class CrashedExchange:
    """An exchange that a request crashed engines in, in an attempt of it; `was_alone`: at all of those engines."""

    attempt: int
    was_alone: bool


class PoisonBites(InvariantWatcher):
    """Crashes engines when they execute rows of requests whose seeds are `poison`, and watches how many each request
    crashes alone. Bites are counted in `done`. It comes before other watchers, which see the crash.
    """

    invariant = "I12"
    roles = ("instance", "dispatcher")

    def __init__(
        self,
        cluster: SimulatedCluster,
        clients: CampaignClients,
        faults: FaultInjector,
        poison: set[int],
        done: Counter[str],
    ) -> None:
        super().__init__(cluster, clients, faults)
        self._poison = poison
        self._done = done
        self._alone: Counter[tuple[object, ...]] = Counter()
        self._crashed_in: dict[tuple[Address, int], dict[int, CrashedExchange]] = {}
        self._heard: set[int] = set()
        self._heard_late: set[int] = set()
        self._left: dict[int, int] = {}
        """By exchange that a member left: its group."""
        self._returned: set[tuple[Address, int, int]] = set()

    def before(self, event: Delivery) -> None:
        """Note what cores are about to learn of crashes: leaders from their members, dispatchers from leaders."""
        message = event.message
        if isinstance(message, GuestsLost) and message.exchange:
            core = self.cluster.core(event.to)
            led = core.led_group if isinstance(core, InstanceCore) else None
            # Where it leads that group no more, its sequences have gone back, and may run elsewhere already.
            is_led = led is not None and led.number == message.group
            (self._heard if is_led else self._heard_late).add(message.exchange)
        elif isinstance(message, Returned):
            core = self.cluster.core(event.to)
            journal = core.journal if isinstance(core, DispatcherCore) else None
            if journal is not None and journal.current_attempt(event.sender, message.request, message.attempt):
                self._returned.add((event.to, message.request, message.attempt))

    def after(self, event: Delivery) -> None:
        """Crash the engine when a row of a poison request is executed.

        Raises:
            Violation: that request has crashed too many.
        """
        core = self.cluster.core(event.to)
        if not isinstance(core, InstanceCore):
            return
        self._note_left(core)
        if self.cluster.world.is_paused(event.to) or not self.cluster.has_engine(event.to):
            return
        rows = [sequence for sequence, _ in core.steps.executing_rows()]
        guests = executing_guests(core)
        seeds = [sequence.place.sampling.seed for sequence in rows] + [guest.opened.sampling.seed for guest in guests]
        if not self._poison.isdisjoint(seeds):
            self.cluster.engine_supervisors[event.to].crash(signal=11)
            self._done["bite"] += 1
            if len(rows) == 1:
                self._check_sequence(core, rows[0])
            if guests:
                self._check_guests(core, guests)

    def _note_left(self, member: InstanceCore) -> None:
        """Note an exchange that the engine computes for a group that the instance is in no more: if the engine crashes,
        it tells no leader.
        """
        step, order = member.group_member.steps.running, member.group_order
        if step is not None and step.is_dropped and order is not None and order.group != step.asked.group:
            self._left[step.asked.exchange] = step.asked.group

    def _check_sequence(self, core: InstanceCore, sequence: Sequence) -> None:
        """Check that a request that crashes engines while it runs alone is stopped after `MOST_ALONE`."""
        attempt = (core.address, sequence.dispatcher, sequence.place.request, sequence.place.attempt)
        self._alone[attempt] += 1
        # `suspicion` is 1 more than the engines that it crashed alone, at other instances too.
        if self._alone[attempt] > MOST_ALONE or sequence.suspicion > MOST_ALONE:
            count = self._alone[attempt]
            raise self.fail(f"{sequence.name} crashed {count} engines of {core.address} alone ({sequence.suspicion})")

    def _check_guests(self, member: InstanceCore, guests: list[Guest]) -> None:
        """Check the same of a group: so many exchanges crash engines by a request that is alone in them, but for those
        of which none could know in time. Of the engines that crash in one exchange all have it alone, or it is in
        company.
        """
        step, order = member.group_member.steps.running, member.group_order
        assert step is not None
        assert order is not None
        is_alone = len(named_guests(step.asked)) == 1
        for guest in guests:
            alone = self._add_crash(guest.opened, step.asked.exchange, is_alone)
            if len(alone) <= MOST_ALONE or self.faults.was_disturbed(*order.members):
                continue
            reasons = {exchange: self._why_unknown(guest.opened, exchange, attempt) for exchange, attempt in alone}
            known = [exchange for exchange, reason in reasons.items() if not reason]
            if len(known) > MOST_ALONE:
                raise self.fail(f"guest {guest.number} crashed engines of {order} alone in exchanges {known}")
            for reason in sorted(set(reasons.values()) - {""}):
                self.excuse(reason)

    def _add_crash(self, opened: OpenGuest, exchange: int, is_alone: bool) -> list[tuple[int, int]]:
        """Add a crash; returns the exchanges, with their attempts, in which its request alone crashed engines."""
        crashed = self._crashed_in.setdefault((opened.dispatcher, opened.request), {})
        was_alone = exchange not in crashed or crashed[exchange].was_alone
        crashed[exchange] = CrashedExchange(opened.attempt, is_alone and was_alone)
        return [(number, each.attempt) for number, each in crashed.items() if each.was_alone]

    def _why_unknown(self, opened: OpenGuest, exchange: int, attempt: int) -> str:
        """Why the leader of the guest's attempt could not know of a crash, of that attempt; empty: it could."""
        if attempt != opened.attempt and (opened.dispatcher, opened.request, attempt) not in self._returned:
            return NOT_RETURNED
        if exchange in self._heard:
            return ""
        if exchange in self._heard_late:
            return ENDED_BEFORE
        return NEVER_SAID if exchange in self._left and not self._is_led(self._left[exchange]) else ""

    def _is_led(self, group: int) -> bool:
        found = [core.led_group for core in self.cluster.instances.values()]
        return any(led is not None and led.number == group for led in found)


def executing_guests(core: InstanceCore) -> list[Guest]:
    """The guests with rows in the group's step that the engine computes; none while that is another step."""
    step = core.group_member.steps.running
    return [row.guest for row in step.rows] if step is not None and core.steps.oldest_step == step.number else []
