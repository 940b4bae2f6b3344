"""Watches the fleet: collects reports and reasons, suspects instances without progress, publishes FleetView versions.

Only reports suspicions: the readers of the FleetView act on them. Knows no wire and no page of metrics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dunlin.cores.handlers import handlers_of, handles
from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.fleet import (
    DispatcherReport,
    ExplainQuery,
    Explanation,
    FleetStatus,
    FleetView,
    InstanceReport,
    KvstoreReport,
    ManagerReport,
    MemberView,
    Reason,
    Reasons,
    StatusQuery,
)
from dunlin.messages.membership import MemberDown, MembersReset, MemberUp
from services.monitor.config import MonitorConfig
from services.monitor.fleet_views import FleetViews, member_view
from services.monitor.reason_ring import ReasonRing
from services.monitor.registry import Registry, Report
from services.monitor.watchdog import InstanceWatchdog, KeptGaps

SUBSCRIBERS = ("dispatcher", "global_manager")
TRACES = Address("traces", "")
"""The outlet that makes spans of the reasons, if this process's server attached one."""


class Codec(Protocol):
    """Messages as bytes and back; `decode` raises ValueError for bytes that are no message."""

    def encode(self, message: Message) -> bytes: ...

    def decode(self, kind: str, data: bytes) -> Message: ...


@dataclass(frozen=True, slots=True)
class WatchdogTick:
    """Time to check each instance for progress."""


@dataclass(frozen=True, slots=True)
class PublishDue:
    """Changes of load have waited long enough, unless they were published meanwhile."""

    version: int


class MonitorCore:
    """The registry, one watch per instance, the views and the ring of reasons.

    `stale_total` counts reports of processes that have no stream or are replaced by a newer incarnation.
    """

    def __init__(self, address: Address, config: MonitorConfig, codec: Codec) -> None:
        self.address = address
        self.registry = Registry(address)
        self.fleet_views = FleetViews()
        self.reasons = ReasonRing(config.reasons.ring_records, config.reasons.ring_bytes, codec.decode)
        self.suspicions_total = 0
        self.stale_total = 0
        self._liveness, self._view_pace = config.liveness, config.views
        self._max_explained = config.reasons.max_explained
        self._traces = config.traces
        self._codec = codec
        self._watchdogs: dict[Address, InstanceWatchdog] = {}
        self._gaps = KeptGaps(config.liveness)
        self._without_report: dict[Address, None] = {}
        self._published_s = float("-inf")
        self._due_version = 0
        self._due_s = 0.0
        self._tick_due_s: float | None = None  # before the first message
        self._warm = False
        self._warm_by_s = float("inf")
        self._members_known = False
        self._handlers = handlers_of(self)

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        is_first = self._tick_due_s is None
        if self._tick_due_s is not None and now_s - self._tick_due_s > self._liveness.slept_s:
            self._after_sleep(now_s)
        handler = self._handlers.get(type(message))
        effects = handler(now_s, sender, message) if handler is not None else []
        if is_first:
            self._warm_by_s = now_s + self._view_pace.warm_up_s
            effects.append(self._next_tick(now_s))
        return effects + (self._publish(now_s) if self._warm else self._warm_up(now_s))

    def status(self, now_s: float) -> FleetStatus:
        """The members of the fleet, and the state of the monitor itself."""
        members = tuple(
            self.registry.status(now_s, address, address in self._watchdogs and self._watchdogs[address].suspect)
            for address in self.registry.present()
        )
        return FleetStatus(
            self.fleet_views.version, members, self.suspicions_total, len(self.reasons), self.reasons.lost
        )

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        if not sender.incarnation:  # an address inside this process: a tool that asks, or the outlet of traces
            return []
        self.registry.stream_opened(sender)
        self._refresh_process(now_s, sender)
        return [Send(sender, self.fleet_views.snapshot())] if sender.role in SUBSCRIBERS and self._warm else []

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self.registry.stream_closed(sender)
        self._refresh_process(now_s, sender)
        return []

    @handles
    def _on_instance_report(self, now_s: float, sender: Address, message: InstanceReport) -> list[Effect]:
        if not self._record_report(now_s, sender, message) or sender not in self._watchdogs:
            return []
        self._watchdogs[sender].observe(now_s, message)
        self._judge(now_s, sender)
        self._refresh(sender)
        if not self._watchdogs[sender].suspect:
            self._without_report.pop(sender, None)
        return []

    @handles
    def _on_report(
        self, now_s: float, sender: Address, message: DispatcherReport | KvstoreReport | ManagerReport
    ) -> list[Effect]:
        self._record_report(now_s, sender, message)
        return []

    @handles
    def _on_reasons(self, now_s: float, sender: Address, message: Reasons) -> list[Effect]:
        self.reasons.lost += message.lost
        for reason in message.reasons:
            self.reasons.add(reason)
        return [Send(TRACES, message)] if self._traces else []

    @handles
    def _on_members_reset(self, now_s: float, sender: Address, message: MembersReset) -> list[Effect]:
        self._members_known = True
        present = {member.address: None for member in message.members}
        for address in self.registry.registered():
            if address not in present:
                self.registry.deregister(address)
                self._refresh_process(now_s, address)
        for member in message.members:
            self.registry.register(member)
        for member in message.members:
            self._refresh_process(now_s, member.address)
        return []

    @handles
    def _on_member_up(self, now_s: float, sender: Address, message: MemberUp) -> list[Effect]:
        self.registry.register(message.member)
        self._refresh_process(now_s, message.member.address)
        return []

    @handles
    def _on_member_down(self, now_s: float, sender: Address, message: MemberDown) -> list[Effect]:
        self.registry.deregister(message.address)
        self._refresh_process(now_s, message.address)
        return []

    @handles
    def _on_tick(self, now_s: float, sender: Address, message: WatchdogTick) -> list[Effect]:
        for address in self._watchdogs:
            self._judge(now_s, address)
        return [self._next_tick(now_s)]

    @handles
    def _on_publish_due(self, now_s: float, sender: Address, message: PublishDue) -> list[Effect]:
        is_due = self._warm and message.version == self.fleet_views.version and self.fleet_views.changed
        return self._publish_now(now_s) if is_due else []

    @handles
    def _on_explain(self, now_s: float, sender: Address, message: ExplainQuery) -> list[Effect]:
        return [Send(sender, Explanation(self.reasons.records_of(message.request, self._max_explained)))]

    @handles
    def _on_status(self, now_s: float, sender: Address, message: StatusQuery) -> list[Effect]:
        return [Send(sender, self.status(now_s))]

    def _next_tick(self, now_s: float) -> After:
        self._tick_due_s = now_s + self._liveness.tick_s
        return After(self._liveness.tick_s, WatchdogTick())

    def _after_sleep(self, now_s: float) -> None:
        """This process slept: that time counts against no instance, and old suspicions wait for another check.

        A suspect may have made progress since; its reports are still in the queue behind the first messages.
        """
        self._tick_due_s = now_s
        self._gaps.forget()
        for address, watch in self._watchdogs.items():
            watch.restart_clocks(now_s)
            if watch.suspect:
                self._without_report[address] = None
        if self._without_report:
            self._warm, self._warm_by_s = False, now_s + self._view_pace.warm_up_s

    def _record_report(self, now_s: float, sender: Address, report: Report) -> bool:
        if not self.registry.is_connected(sender) or self.registry.is_superseded(sender):
            self.stale_total += 1
            return False
        self.registry.record_report(now_s, sender, report)
        return True

    def _refresh_process(self, now_s: float, address: Address) -> None:
        """Something about the presence of `address` changed; a newer incarnation drives older ones out."""
        self.registry.see(now_s, address)
        for known in self.fleet_views.incarnations(address.name):
            if not self.registry.is_present(known):
                self._forget(known)
        if address.role == "instance" and self.registry.is_present(address):
            if address not in self._watchdogs:
                gaps = self._gaps.take(now_s, address.name)
                self._watchdogs[address] = InstanceWatchdog(now_s, self._liveness, gaps)
                if not self._warm:
                    self._without_report[address] = None
            self._refresh(address)

    def _forget(self, address: Address) -> None:
        self.fleet_views.remove(address)
        self._without_report.pop(address, None)
        watch = self._watchdogs.pop(address, None)
        if watch is not None:
            self._gaps.keep(address.name, watch.gaps)

    def _refresh(self, address: Address) -> None:
        self.fleet_views.put(self._view_of(address))

    def _view_of(self, address: Address) -> MemberView:
        watch = self._watchdogs[address]
        report = self.registry.report_of(address)
        instance = report if isinstance(report, InstanceReport) else None
        return member_view(address, self.registry.node_of(address), instance, watch.suspect, watch.why)

    def _judge(self, now_s: float, address: Address) -> None:
        """Judge one instance; a changed suspicion is recorded as the part of the next FleetView that says so."""
        watch = self._watchdogs[address]
        if not watch.update_suspicion(now_s):
            return
        self.suspicions_total += watch.suspect
        self._refresh(address)
        said = FleetView(self.fleet_views.version + 1, (self._view_of(address),), self.fleet_views.version)
        self.reasons.add(Reason(now_s, self.address, address, FleetView.__name__, self._codec.encode(said)))

    def _warm_up(self, now_s: float) -> list[Effect]:
        """Start to publish once every registered instance has reported, or the time is up."""
        if now_s < self._warm_by_s and (not self._members_known or self._without_report):
            return []
        self._warm = True
        self._without_report.clear()
        self._published_s = now_s
        if self.fleet_views.changed:
            self.fleet_views.publish()
        return [Send(peer, self.fleet_views.snapshot()) for peer in self.registry.connected(*SUBSCRIBERS)]

    def _publish(self, now_s: float) -> list[Effect]:
        """Publish changes once the last version is old enough: for urgent changes that is nearly always now."""
        if not self.fleet_views.changed:
            return []
        config = self._view_pace
        interval_s = config.publish_interval_s
        if self.fleet_views.urgent:
            interval_s = min(
                interval_s, config.urgent_per_instance_s * max(0, len(self._watchdogs) - config.small_fleet)
            )
        due_s = self._published_s + interval_s
        if due_s <= now_s:
            return self._publish_now(now_s)
        if self._due_version == self.fleet_views.version and self._due_s <= due_s:
            return []
        self._due_version, self._due_s = self.fleet_views.version, due_s
        return [After(due_s - now_s, PublishDue(self.fleet_views.version))]

    def _publish_now(self, now_s: float) -> list[Effect]:
        self._published_s = now_s
        view = self.fleet_views.publish()
        return [Send(peer, view) for peer in self.registry.connected(*SUBSCRIBERS)]
