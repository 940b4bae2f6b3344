"""The timers of the dispatcher's core. A timer is never cancelled: one with an old counter or request is ignored.

Test: `tests/services/dispatcher/test_core.py`.
"""

from dataclasses import dataclass

from dunlin.effects import Address


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """The `timeout_s` of `reader`, a client of request `request`, is over."""

    request: int
    reader: Address
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RefusalPauseOver:
    """The pause after refusal number `refusal` of `instance` is over: it is a candidate again."""

    instance: Address
    refusal: int


@dataclass(frozen=True, slots=True)
class OutageTimeout:
    """No instance has been serving for `give_up_after_s`, unless outage number `outage` ended meanwhile."""

    outage: int


@dataclass(frozen=True, slots=True)
class AdoptionQueryTimeout:
    """The adoption query for attempt `attempt` of request `request` has lasted `ask_s`: no more answers are awaited."""

    request: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AdoptionQueryAnswered:
    """No instance is left whose answer is awaited for request `request`: its turn to be queued."""

    request: int


@dataclass(frozen=True, slots=True)
class AdoptionQueryRetry:
    """Request `request`, adopted by another dispatcher, may be adopted back as its attempt `attempt`."""

    request: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonTimeout:
    """Request `request` has had no reader for `grace_s`, unless one joined since absence number `reader_absence`."""

    request: int
    reader_absence: int


@dataclass(frozen=True, slots=True)
class LongAskDue:
    """Request `request`, whose next attempt would follow `attempt`, may ask the manager for a group again."""

    request: int
    attempt: int


@dataclass(frozen=True, slots=True)
class LeaderlessDue:
    """No manager has led for `leaderless_s`, unless one did since absence number `absence`."""

    absence: int
