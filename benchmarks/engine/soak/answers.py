"""Which commands of one engine are unanswered: each has exactly one answer. Pure."""

from collections import Counter
from typing import Any

from benchmarks.engine.soak.engine_child import SoakError
from dunlin.messages.engine import (
    Interrupt,
    Interrupted,
    Remap,
    RemapDone,
    Resume,
    Step,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)

Key = tuple[str, int]


class UnansweredCommands:
    """Owns the commands that wait for their one answer. `counts`: commands and answers by name.

    `Unsupported` is an answer to a `Remap` that was aborted only.
    """

    def __init__(self, engine: str) -> None:
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._open: dict[Key, Any] = {}
        self._phases: list[Remap] = []

    def __len__(self) -> int:
        return len(self._open) + len(self._phases)

    def __repr__(self) -> str:
        return f"{self._engine} has not answered {sorted(self._open)} and {self._phases}"

    @property
    def steps(self) -> int:
        """Unanswered steps, resumed ones included."""
        return sum(kind == "step" for kind, _ in self._open)

    @property
    def phases(self) -> int:
        """Unanswered phases of a change of layers."""
        return len(self._phases)

    def asked(self, message: Any) -> None:
        """Note a command, if it is one that is answered."""
        self.counts[type(message).__name__] += 1
        if isinstance(message, Remap):
            self._phases.append(message)
        elif (key := command_key(message)) is not None:
            self._open[key] = message

    def answered(self, event: Any) -> Any:
        """The command that the event answers; None: it answers none. :raises SoakError: no such one is unanswered."""
        self.counts[type(event).__name__] += 1
        if isinstance(event, RemapDone):
            return self._phase(event, [each for each in self._phases if each.phase is event.phase])
        if isinstance(event, Unsupported):
            is_aborted = event.what == "Remap" and len(self._phases) > 1
            return self._phase(event, self._phases if is_aborted else [])
        key = answer_key(event)
        if key is None:
            return None
        if key not in self._open:
            raise SoakError(f"{self._engine} answers what is not open: {event}")
        return self._open.pop(key)

    def _phase(self, event: Any, fitting: list[Remap]) -> Remap:
        if not fitting or fitting[0].layout != event.layout:
            raise SoakError(f"{self._engine} says {event} to {self._phases}")
        found = fitting[0]
        self._phases.remove(found)
        return found


def command_key(message: Any) -> Key | None:
    """The fence of a command's answer."""
    if isinstance(message, Step | Resume):
        return "step", message.step
    if isinstance(message, Interrupt):
        return "interrupt", message.ticket
    return ("transfer", message.ticket) if isinstance(message, Transfer) else None


def answer_key(event: Any) -> Key | None:
    """The fence of an answer."""
    if isinstance(event, StepDone):
        return "step", event.step
    if isinstance(event, Interrupted):
        return "interrupt", event.ticket
    return ("transfer", event.ticket) if isinstance(event, TransferDone) else None
