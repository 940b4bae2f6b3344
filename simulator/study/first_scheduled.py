"""The time at which each request was first in an engine, read from the deliveries of a world."""

from collections.abc import Mapping

from dunlin.messages.engine import Open
from services.instance.core import InstanceCore
from simulator.cluster.process import Delivery


class FirstScheduled:
    """`at_s[request]`: the time of a request's first `Open`, by public id; `on_delivery` takes every delivery."""

    def __init__(self, instances: Mapping[str, InstanceCore]) -> None:
        self.at_s: dict[str, float] = {}
        self._instances = instances

    def on_delivery(self, event: Delivery) -> None:
        """Note the time if the delivery opens a sequence in an engine."""
        if type(event.message) is not Open:
            return
        core = self._instances.get(event.sender.name)
        sequence = core.sequences.get(event.message.sequence) if core is not None else None
        if sequence is not None:
            self.at_s.setdefault(sequence.place.key, event.at_s)
