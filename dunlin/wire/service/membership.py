"""Follows the registrations in etcd, probes members that vanish, and passes confirmed changes on. Decides nothing."""

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Sequence
from math import inf
from typing import Protocol

from dunlin.membership.failure_detector import FailureDetector, LivenessProbe, ProbeVerdict
from dunlin.messages.membership import Member, MemberDown, MemberMessage
from dunlin.runtime.core_host import Clock

_log = logging.getLogger(__name__)

OnMembership = Callable[[MemberMessage], None]
Guard = Callable[[asyncio.Task[None]], None]


class ProbeCaller(Protocol):
    """The probe of one member."""

    async def probe(self, member: Member) -> ProbeVerdict:
        """Whether `member` lives; never raises."""
        ...


class MembershipWatch:
    """Owns the probes under way and the timer of the next ones. `run` it as a task; cancelling that ends all.

    `tell` gets the messages for the core; `guard` gets every probe's task when it is done.
    """

    def __init__(
        self,
        watch: AsyncIterable[MemberMessage],
        prober: ProbeCaller,
        tell: OnMembership,
        clock: Clock,
        guard: Guard,
        confirmation: FailureDetector | None = None,
    ) -> None:
        self.confirmation = confirmation or FailureDetector()
        self._watch = watch
        self._prober = prober
        self._tell = tell
        self._clock = clock
        self._guard = guard
        self._probes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._frozen = False

    async def run(self) -> None:
        """Never returns, and raises only what `tell` raises."""
        try:
            async for message in self._watch:
                self._carry_out(self.confirmation.apply(self._clock(), message))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._probes:
                task.cancel()

    def _carry_out(self, outcomes: Sequence[MemberMessage | LivenessProbe]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, LivenessProbe):
                task = asyncio.create_task(self._probe(outcome), name=f"probe of {outcome.member.address}")
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)
                task.add_done_callback(self._guard)
            else:
                self._tell(outcome)
        self._note_freeze()
        self._set_timer()

    async def _probe(self, probe: LivenessProbe) -> None:
        verdict = await self._prober.probe(probe.member)
        outcomes = self.confirmation.record_verdict(self._clock(), probe, verdict)
        level = logging.INFO if any(isinstance(outcome, MemberDown) for outcome in outcomes) else logging.DEBUG
        _log.log(level, "%s is not registered any more, and %s", probe.member.address, verdict.value)
        self._carry_out(outcomes)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_s = self.confirmation.next_probe_s
        if next_s < inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, next_s - self._clock()), self._due)

    def _due(self) -> None:
        self._timer = None
        self._carry_out(self.confirmation.due_probes(self._clock()))

    def _note_freeze(self) -> None:
        if self.confirmation.is_frozen == self._frozen:
            return
        self._frozen = not self._frozen
        if self._frozen:
            doubted = len(self.confirmation.in_doubt)
            _log.warning("membership frozen: %d members lost their registration, most of all there are", doubted)
        else:
            _log.info("membership no longer frozen")
