"""Which instances have had no stream to here for too long to be in an elastic group.

A stream that breaks is opened anew within moments; an instance that died is in the views for seconds yet, until it was
probed. Its group's other members need not wait for that: their next order fences it if it lives.
"""

from collections.abc import Container
from dataclasses import dataclass

from dunlin.effects import Address, After, Effect


@dataclass(frozen=True, slots=True)
class LeaseDue:
    """The instance's lease is over, unless its stream came back or ended anew since (`absence`)."""

    instance: Address
    absence: int


class StreamLeases:
    """Owns the absences of the instances, by their number, and those that lasted for `lease_s`."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._absences = 0
        self._absent: dict[Address, int] = {}
        self._over: dict[Address, None] = {}

    def is_over(self, instance: Address) -> bool:
        """Whether it has had no stream for so long."""
        return instance in self._over

    def on_joined(self, instance: Address) -> None:
        """Its stream is open."""
        self._absent.pop(instance, None)
        self._over.pop(instance, None)

    def on_gone(self, instance: Address) -> Effect:
        """Its stream ended."""
        self._absences += 1
        self._absent[instance] = self._absences
        return After(self._lease_s, LeaseDue(instance, self._absences))

    def look_again(self, due: LeaseDue) -> Effect:
        """Which side is to blame for the absence is not known yet."""
        return After(self._lease_s, due)

    def on_due(self, due: LeaseDue) -> bool:
        """Whether its lease is over now."""
        if self._absent.get(due.instance) != due.absence:
            return False
        del self._absent[due.instance]
        self._over[due.instance] = None
        return True

    def forget_unknown(self, known: Container[Address]) -> None:
        """Forget those that no view shows any more."""
        self._over = {one: None for one in self._over if one in known}
