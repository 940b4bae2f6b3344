"""When requests began to be computed: the first time that an engine was told of each. Watches a world from outside."""

from collections.abc import Mapping

from dunlin.messages.engine import Open
from services.instance.core import InstanceCore
from simulator.cluster.process import Delivery


class FirstScheduled:
    """`at_s[request]`, by public id, on the world's clock. Give `look` every delivery."""

    def __init__(self, instances: Mapping[str, InstanceCore]) -> None:
        self.at_s: dict[str, float] = {}
        self._instances = instances

    def on_delivery(self, event: Delivery) -> None:
        """A message has been delivered."""
        if type(event.message) is not Open:
            return
        core = self._instances.get(event.sender.name)
        sequence = core.sequences.get(event.message.sequence) if core is not None else None
        if sequence is not None:
            self.at_s.setdefault(sequence.place.key, event.at_s)
