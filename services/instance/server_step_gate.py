"""Transfers of what a step writes, until it has answered: the helper between nodes sees no step. Pure."""

from dataclasses import dataclass

from dunlin.effects import Message
from dunlin.messages.engine import Interrupted, Resume, Step, StepDone, Transfer, Unsupported


@dataclass(frozen=True, slots=True)
class Opened:
    """Transfers that may go now, and those whose row left its step: what they were to copy is not written."""

    ready: tuple[Transfer, ...] = ()
    failed: tuple[Transfer, ...] = ()


class StepGate:
    """Owns the numbers of the steps that are not answered, and the transfers behind them."""

    def __init__(self) -> None:
        self._steps: set[int] = set()
        self._held: dict[int, Transfer] = {}

    def on_command(self, message: Message) -> None:
        """A command goes to the engine."""
        if isinstance(message, Step | Resume):
            self._steps.add(message.step)

    def holds(self, transfer: Transfer) -> bool:
        """Whether the transfer waits here for its step."""
        is_behind = transfer.step in self._steps
        if is_behind:
            self._held[transfer.ticket] = transfer
        return is_behind

    def cancel(self, ticket: int) -> Transfer | None:
        """Take a transfer out; None: it is not here."""
        return self._held.pop(ticket, None)

    def on_event(self, event: Message) -> Opened:
        """The engine says something: which transfers that frees."""
        if isinstance(event, StepDone | Unsupported):
            self._steps.discard(event.step)
        if not self._held:
            return Opened()
        if isinstance(event, Interrupted):
            return Opened(failed=self._take(set(zip(event.step, event.sequence, strict=True))))
        if isinstance(event, StepDone):
            failed = self._take({(event.step, sequence) for sequence in (*event.dropped, *event.left)})
            return Opened(self._take_all(event.step), failed)
        return Opened(failed=self._take_all(event.step)) if isinstance(event, Unsupported) else Opened()

    def _take(self, rows: set[tuple[int, int]]) -> tuple[Transfer, ...]:
        """Those behind these rows: step and sequence."""
        taken = tuple(each for each in self._held.values() if (each.step, each.sequence) in rows)
        for each in taken:
            del self._held[each.ticket]
        return taken

    def _take_all(self, step: int) -> tuple[Transfer, ...]:
        return self._take({(step, each.sequence) for each in self._held.values()})
