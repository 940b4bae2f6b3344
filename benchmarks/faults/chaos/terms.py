"""I3 from what was recorded: each epoch belongs to the candidate that etcd names, and to one process. Pure."""

from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent, WatchEvent
from dunlin.messages.fleet import FleetStatus


@dataclass(slots=True)
class RecordedTerms:
    """`candidates`: by epoch, the writer of its key in etcd; `led`: by epoch, the managers that said they lead it.

    `gaps`: how often the watch of etcd had to start over, so that keys may have come and gone unseen.
    """

    candidates: dict[int, str] = field(default_factory=dict)
    led: dict[int, set[Address]] = field(default_factory=dict)
    gaps: int = -1

    def on_event(self, event: WatchEvent) -> None:
        """Take in an event of the watch of the election's keys."""
        match event:
            case ResetEvent():
                self.gaps += 1
                for item in event.items:
                    self.candidates[item.create_revision] = item.value.decode()
            case PutEvent():
                self.candidates[event.item.create_revision] = event.item.value.decode()
            case DeletedEvent():
                pass

    def on_status(self, status: FleetStatus) -> None:
        """Take in what managers report."""
        for member in status.members:
            if member.manager is not None and member.manager.epoch:
                self.led.setdefault(member.manager.epoch, set()).add(member.address)

    def complaints(self) -> list[str]:
        """What is wrong, once the watch has caught up."""
        wrong = []
        for epoch, managers in sorted(self.led.items()):
            names = sorted(f"{one.name}#{one.incarnation}" for one in managers)
            if len(managers) > 1:
                wrong.append(f"I3: epoch {epoch} is led by {' and '.join(names)}")
            owner = self.candidates.get(epoch)
            if owner is None and not self.gaps:
                wrong.append(f"I3: {names[0]} leads epoch {epoch}, which etcd gave to none")
            wrong += [
                f"I3: {one.name} leads epoch {epoch}, which is {owner}'s"
                for one in managers
                if owner is not None and one.name != owner
            ]
        return wrong
