"""The live host of one core: a queue in front of it, and hands that carry out its effects.

It knows no message but `Joined` and `Gone`, no transport beyond `PeerOutlet`, and decides nothing. Everything runs
in one event loop's thread; `deliver` may be called from anywhere in it, also from inside an outlet.
"""

import asyncio
import logging
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from dunlin.effects import Address, After, Core, Effect, Gone, Joined, Message, SendEach

_log = logging.getLogger(__name__)

Clock = Callable[[], float]
TimerScheduler = Callable[[float, Callable[[], None]], object]
OnCrash = Callable[[Exception], None]

REASONS_KEPT = 8192
_CRASH_EXIT_CODE = 70


class PeerOutlet(Protocol):
    """The way to one peer."""

    def send(self, message: Message) -> bool:
        """Take `message` for sending, without blocking. False: full; the host then closes the outlet."""
        ...

    def close(self, reason: str) -> None:
        """Stop for good. The host does not want to hear of it again."""
        ...


@dataclass(frozen=True, slots=True)
class SentDecision:
    """A message with a reason, as it was sent."""

    at_s: float
    sender: Address
    to: Address
    message: Message


def wall_clock() -> Clock:
    """The wall's time at the start, then monotonic: never goes back, and orders the records of several processes."""
    offset_s = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset_s


def end_process(error: Exception) -> None:
    """Print what happened and end: a core that raised is in no known state, and its peers know how to do without it."""
    _log.critical("the core failed; this process ends: %s", error)
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_CRASH_EXIT_CODE)


class CoreHost:
    """Feeds one core. Owns the outlets: each peer has at most one, and its `Joined` and `Gone` come in pairs, in order.

    `undeliverable` counts messages to addresses without an outlet, `overflowed` outlets closed because they were full.
    """

    def __init__(
        self,
        core: Core,
        address: Address,
        clock: Clock,
        *,
        later: TimerScheduler | None = None,
        on_crash: OnCrash = end_process,
        reasons_kept: int = REASONS_KEPT,
    ) -> None:
        self.address = address
        self.clock = clock
        self.undeliverable = 0
        self.overflowed = 0
        self._core = core
        self._later = later or asyncio.get_running_loop().call_later
        self._on_crash = on_crash
        self._outlets: dict[Address, PeerOutlet] = {}
        self._queue: deque[tuple[Address, Message]] = deque()
        self._busy = False
        self._closed = False
        self._decisions: deque[SentDecision] = deque(maxlen=reasons_kept)
        self._lost = 0

    def attach(self, peer: Address, outlet: PeerOutlet) -> None:
        """`peer` can be reached: the core hears `Joined`. An older outlet is closed, and its `Gone` comes first."""
        self.detach(peer, "replaced by a newer connection")
        if self._closed:
            outlet.close("stopping")
            return
        self._outlets[peer] = outlet
        self.deliver(peer, Joined())

    def detach(self, peer: Address, reason: str = "", outlet: PeerOutlet | None = None) -> None:
        """`peer` cannot be reached any more: its outlet is closed and the core hears `Gone`, once.

        With `outlet`, only if that one is still the peer's: a replaced connection cannot take its successor down.
        """
        current = self._outlets.get(peer)
        if current is None or (outlet is not None and outlet is not current):
            return
        del self._outlets[peer]
        current.close(reason)
        self.deliver(peer, Gone(reason))

    def peers(self, role: str) -> list[Address]:
        """The peers of this role that can be reached now, in the order of joining."""
        return [peer for peer in self._outlets if peer.role == role]

    def deliver(self, sender: Address, message: Message) -> None:
        """Give a message to the core: now, or after those before it."""
        if self._closed:
            return
        self._queue.append((sender, message))
        if self._busy:
            return
        self._busy = True
        try:
            self._work()
        except Exception as error:
            self._on_crash(error)
        finally:
            self._busy = False

    def send(self, to: Address, message: Message) -> bool:
        """Give `message` to a peer's outlet; False: there is none, or it was full (and is closed now)."""
        outlet = self._outlets.get(to)
        return (outlet is not None and outlet.send(message)) or self._unsent(to, outlet)

    def drain(self, most: int) -> tuple[list[SentDecision], int]:
        """The oldest recorded decisions, at most `most`, and how many were lost since the last call."""
        decisions = [self._decisions.popleft() for _ in range(min(most, len(self._decisions)))]
        lost, self._lost = self._lost, 0
        return decisions, lost

    def crash_on_error(self, task: "asyncio.Task[None]") -> None:
        """For `task.add_done_callback`: a task that fails is as bad as a core that fails."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._on_crash(error)

    def close(self) -> None:
        """Close all outlets; the core hears nothing any more."""
        self._closed = True
        self._queue.clear()
        outlets, self._outlets = self._outlets, {}
        for outlet in outlets.values():
            outlet.close("stopping")

    def _work(self) -> None:
        while self._queue:
            sender, message = self._queue.popleft()
            for effect in self._core.receive(self.clock(), sender, message):
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, After):
            self._later(effect.delay_s, partial(self.deliver, self.address, effect.message))
            return
        if isinstance(effect, SendEach):
            for reader, delta in zip(effect.to, effect.messages, strict=True):
                self.send(reader, delta)
            return
        to, message = effect.to, effect.message
        outlet = self._outlets.get(to)
        sent = (outlet is not None and outlet.send(message)) or self._unsent(to, outlet)
        # A decision about a client that has left is a decision all the same, and reaches no other peer.
        if getattr(message, "why", None) is not None and (sent or to.role == "client"):
            self._record(SentDecision(self.clock(), self.address, to, message))

    def _unsent(self, to: Address, outlet: PeerOutlet | None) -> bool:
        if outlet is None:
            self.undeliverable += 1
            return False
        self.overflowed += 1
        self.detach(to, "queue full")
        return False

    def _record(self, decision: SentDecision) -> None:
        if len(self._decisions) == self._decisions.maxlen:
            self._lost += 1
        self._decisions.append(decision)
