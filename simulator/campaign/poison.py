"""Requests that crash the engine that computes them, and how many engines they may: I12."""

from collections import Counter

from dunlin.messages.group import GuestsLost
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


class PoisonBites(InvariantWatcher):
    """Crashes engines when they execute rows of requests whose seeds are `poison`, and watches how many each request
    crashes alone. Bites are counted in `done`. It comes before other watchers, which see the crash.
    """

    invariant = "I12"
    roles = ("instance",)

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
        self._alone_in: dict[tuple[object, ...], dict[int, bool]] = {}
        self._unheard: set[int] = set()

    def before(self, event: Delivery) -> None:
        """Note an exchange of whose crash an instance hears when it leads that group no more: its sequences have gone
        back to their dispatchers, and may run elsewhere already.
        """
        message = event.message
        if not isinstance(message, GuestsLost) or not message.exchange:
            return
        core = self.cluster.core(event.to)
        led = core.led_group if isinstance(core, InstanceCore) else None
        if led is None or led.number != message.group:
            self._unheard.add(message.exchange)

    def after(self, event: Delivery) -> None:
        """Crash the engine when a row of a poison request is executed.

        Raises:
            Violation: that request has crashed too many.
        """
        core = self.cluster.core(event.to)
        if not isinstance(core, InstanceCore):
            return
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

    def _check_sequence(self, core: InstanceCore, sequence: Sequence) -> None:
        """Check that a request that crashes engines while it runs alone is stopped after `MOST_ALONE`."""
        attempt = (core.address, sequence.dispatcher, sequence.place.request, sequence.place.attempt)
        self._alone[attempt] += 1
        # `suspicion` is 1 more than the engines that it crashed alone, at other instances too.
        if self._alone[attempt] > MOST_ALONE or sequence.suspicion > MOST_ALONE:
            count = self._alone[attempt]
            raise self.fail(f"{sequence.name} crashed {count} engines of {core.address} alone ({sequence.suspicion})")

    def _check_guests(self, member: InstanceCore, guests: list[Guest]) -> None:
        """Check the same of a group: so many of its exchanges crash engines by a request that is alone in them, but
        for those of which the leader could not hear in time. Of the engines that crash in one exchange all have it
        alone, or it is in company.
        """
        step, order = member.group_member.steps.running, member.group_order
        assert step is not None
        assert order is not None
        is_alone = len(named_guests(step.asked)) == 1
        for guest in guests:
            opened = guest.opened
            exchanges = self._alone_in.setdefault((opened.dispatcher, opened.request), {})
            exchanges[step.asked.exchange] = is_alone and exchanges.get(step.asked.exchange, True)
            alone = [exchange for exchange, was_alone in exchanges.items() if was_alone]
            heard = [exchange for exchange in alone if exchange not in self._unheard]
            if len(alone) <= MOST_ALONE or self.faults.was_disturbed(*order.members):
                continue
            if len(heard) > MOST_ALONE:
                raise self.fail(f"guest {guest.number} crashed engines of {order} alone in exchanges {heard}")
            self.excuse("a leader hears of a crash after its group has ended")


def executing_guests(core: InstanceCore) -> list[Guest]:
    """The guests with rows in the group's step that the engine computes; none while that is another step."""
    step = core.group_member.steps.running
    return [row.guest for row in step.rows] if step is not None and core.steps.oldest_step == step.number else []
