"""Reading recorded decisions: which instance holds a request, when it was dispatched again or went on, and how often
its rows left a step. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.messages.dispatch import Continued, Place
from dunlin.messages.engine import Interrupt, Resume
from dunlin.messages.fleet import Reason
from dunlin.messages.types import Verdict


@dataclass(frozen=True, slots=True)
class DispatchedAttempt:
    """One attempt: given to `instance` at `at_s` (wall clock of the dispatcher), `done` tokens after the prompt."""

    attempt: int
    instance: str
    at_s: float
    done: int


@dataclass(frozen=True, slots=True)
class RowCommands:
    """How many `Interrupt` commands of each verdict and `Resume` commands with a reason named a request's rows, and how
    many of its attempts were migrations: `Place` with the handle of slots that have its KV."""

    suspends: int = 0
    discards: int = 0
    resumes: int = 0
    moves: int = 0

    @property
    def interrupts(self) -> int:
        """Of either verdict."""
        return self.suspends + self.discards

    def __add__(self, other: "RowCommands") -> "RowCommands":
        return RowCommands(
            self.suspends + other.suspends,
            self.discards + other.discards,
            self.resumes + other.resumes,
            self.moves + other.moves,
        )


def row_commands(records: Sequence[tuple[Reason, object]]) -> RowCommands:
    """The commands about a request's rows, from its recorded messages."""
    messages = [message for _, message in records]
    verdicts = [message.verdict for message in messages if isinstance(message, Interrupt)]
    return RowCommands(
        sum(verdict is Verdict.SUSPEND for verdict in verdicts),
        sum(verdict is Verdict.DISCARD for verdict in verdicts),
        sum(isinstance(message, Resume) for message in messages),
        sum(isinstance(message, Place) and message.handle > 0 for message in messages),
    )


def resumed_at(records: Sequence[tuple[Reason, object]], since_s: float) -> DispatchedAttempt | None:
    """When, after `since_s`, the request went on in its instance's next engine, and with how many tokens."""
    for reason, message in records:
        if isinstance(message, Continued) and message.revived_tokens and reason.at_s > since_s:
            return DispatchedAttempt(message.attempt, reason.sender.name, reason.at_s, message.revived_tokens)
    return None


def dispatched_attempts(records: Sequence[tuple[Reason, object]]) -> list[DispatchedAttempt]:
    """The attempts of a request, in order, from its recorded messages."""
    found = [
        DispatchedAttempt(message.attempt, reason.to.name, reason.at_s, len(message.tokens) - message.prompt_tokens)
        for reason, message in records
        if isinstance(message, Place)
    ]
    return sorted(found, key=lambda one: one.attempt)
