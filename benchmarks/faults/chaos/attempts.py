"""I2 from the recorded reasons: an attempt is dispatched to one instance, and later attempts come later. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.fleet import Reason


def attempt_complaints(records: Sequence[tuple[Reason, object]]) -> list[str]:
    """What is wrong with the attempts of a request, from its recorded messages.

    Each dispatcher that has the request counts attempts of its own, so each is looked at by itself.
    """
    wrong: list[str] = []
    places: dict[tuple[Address, int], list[tuple[float, int, Address]]] = {}
    for reason, message in records:
        if isinstance(message, Place):
            places.setdefault((reason.sender, message.request), []).append((reason.at_s, message.attempt, reason.to))
    for (dispatcher, request), found in places.items():
        name = f"{dispatcher.name}#{dispatcher.incarnation} request {request}"
        for one, other in pairwise(sorted(set(found))):
            if other[1] == one[1] and other[2] != one[2]:
                wrong.append(f"I2: {name}: attempt {one[1]} went to {one[2].name} and to {other[2].name}")
            elif other[1] < one[1]:
                wrong.append(f"I2: {name}: attempt {other[1]} was dispatched after attempt {one[1]}")
    return wrong
