"""What a dispatcher's core tells itself later. None is ever cancelled: an old counter or a dead number is ignored."""

from dataclasses import dataclass

from dunlin.effects import Address


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """The time that the client gave request `request` is over."""

    request: int


@dataclass(frozen=True, slots=True)
class RefusalPauseOver:
    """`instance` may be asked again after its refusal number `refusal`."""

    instance: Address
    refusal: int


@dataclass(frozen=True, slots=True)
class OutageTimeout:
    """Nobody could be asked for too long, unless drought number `drought` ended meanwhile."""

    outage: int


@dataclass(frozen=True, slots=True)
class AdoptionQueryTimeout:
    """Instances were asked long enough whether they hold request `request`, as its attempt `attempt`."""

    request: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AdoptionQueryRetry:
    """Request `request`, taken by another dispatcher, may be asked for as its attempt `attempt`."""

    request: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonTimeout:
    """Request `request` has had no reader for long enough, unless one came since its absence number `absence`."""

    request: int
    reader_absence: int
