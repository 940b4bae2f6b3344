"""Spans out of decision messages: one trace per request, one span per phase, each decision with its reason. Pure.

Below the request's own span lie the queue, and one span per attempt with its phases: placement, prefill, decode,
preempted, migration. A decision that begins no phase is an event of the one that runs. `semantics.py` has the
attributes of the request's own span by OpenTelemetry's conventions. Loads no OpenTelemetry.
"""

from dataclasses import dataclass, field
from typing import Any

from dunlin.effects import Address
from dunlin.messages.dispatch import (
    Accepted,
    Cancel,
    Continued,
    Failed,
    Place,
    Poisoned,
    Preempted,
    Ready,
    Refused,
    Returned,
    Reused,
)
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken
from dunlin.messages.types import FINISH_ERRORS, FinishReason, Why
from dunlin.telemetry import genai_semantics
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.trace_context import TraceContext, span_id

Value = str | int | float | tuple[str, ...]
Attributes = dict[str, Value]

MOST_EVENTS = 128
"""Events of one span; later ones are counted in `dunlin.events_left_out`."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A decision inside a span."""

    at_s: float
    name: str
    attributes: Attributes


@dataclass(slots=True)
class Span:
    """One phase of one request; times in seconds since 1970. `error` empty: it went well. `parent` 0: none.

    `serves`: it is a request's own, the part of its client's trace that this cluster answers for.
    """

    trace: int
    id: int
    parent: int
    name: str
    process: Address
    start_s: float
    end_s: float = 0.0
    attributes: Attributes = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    error: str = ""
    serves: bool = False

    def add(self, event: SpanEvent) -> None:
        """Add a decision as an event, up to `MOST_EVENTS`."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            left_out = self.attributes.get("dunlin.events_left_out", 0)
            assert isinstance(left_out, int)
            self.attributes["dunlin.events_left_out"] = left_out + 1


def reason_attributes(why: Why | None) -> Attributes:
    """A reason as attributes: policy, choice, each figure, each alternative that was rejected."""
    if why is None:
        return {}
    found: Attributes = {"dunlin.why.policy": why.policy, "dunlin.why.chosen": why.chosen}
    found |= {f"dunlin.why.figure.{figure.name}": figure.value for figure in why.figures}
    return found | {f"dunlin.why.rejected.{other.option}": other.reason for other in why.rejected}


class RequestTrace:
    """The spans of one request while it runs. Records come in the order of time."""

    def __init__(self, key: str, context: TraceContext, owner: Address, at_s: float) -> None:
        self.key = key
        self.context = context
        self._names: dict[tuple[str, int], int] = {}
        self._attempt_number = 0
        self._produced = self._has_tokens = False
        self._root = self._open("request", owner, at_s, context.parent, owner.incarnation)
        self._root.serves = True
        self._root.attributes |= {"dunlin.request": key, genai_semantics.RESPONSE_ID: key}
        self._attempt: Span | None = None
        self._phase: Span | None = self._child_span("queue", owner, at_s)
        self._done: list[Span] = []

    @property
    def owner(self) -> Address:
        """The dispatcher that owns the request now."""
        return self._root.process

    def add(self, record: DecisionRecord) -> list[Span]:
        """Take the next record in; returns the spans that ended with it."""
        self._done = []
        turn = _TURNS.get(type(record.message))
        if turn is None:
            self._add_event(record)
        else:
            turn(self, record, record.message)
        return self._done

    def truncate(self, at_s: float, why: str) -> list[Span]:
        """End all open spans: no more records will come."""
        self._done = []
        self._end_phase(at_s, error=why)
        self._end_attempt(at_s, why)
        self._finish(self._root, at_s, why)
        return self._done

    # --- turns ---

    def _admitted(self, record: DecisionRecord, message: Admitted) -> None:
        if record.sender != self.owner:
            self._root.process = record.sender
            self._add_event(record)
        else:
            self._root.attributes |= reason_attributes(message.why)
            if message.origin is not None:
                self._root.name = genai_semantics.span_name(message.origin)
                self._root.attributes |= genai_semantics.admission_attributes(message.origin)

    def _place(self, record: DecisionRecord, message: Place) -> None:
        self._end_phase(record.at_s)
        self._end_attempt(record.at_s, "" if message.handle else "lost")
        self._attempt_number, self._produced = message.attempt, False
        self._attempt = self._child_span("attempt", record.sender, record.at_s)
        self._attempt.attributes |= {
            "dunlin.attempt": message.attempt,
            "dunlin.instance": record.to.name,
            "dunlin.sequence_tokens": len(message.tokens),
            "dunlin.prompt_tokens": message.prompt_tokens,
        }
        self._root.attributes |= genai_semantics.sampling_attributes(message)
        self._begin_phase("migration" if message.handle else "placement", record.sender, record)

    def _accepted(self, record: DecisionRecord, message: Accepted) -> None:
        self._end_phase(record.at_s)
        self._begin_phase("prefill", record.sender, record)

    def _reused(self, record: DecisionRecord, message: Reused) -> None:
        if not self._has_tokens:  # later it finds what it computed itself
            self._root.attributes[genai_semantics.CACHED_TOKENS] = message.tokens
        self._add_event(record)

    def _first_token(self, record: DecisionRecord, message: FirstToken) -> None:
        self._produced = self._has_tokens = True
        self._end_phase(record.at_s)
        self._begin_phase("decode", message.instance, record)

    def _preempted(self, record: DecisionRecord, message: Preempted) -> None:
        self._end_phase(record.at_s)
        self._begin_phase("preempted", record.sender, record)

    def _continued(self, record: DecisionRecord, message: Continued) -> None:
        ways: Attributes = {
            "dunlin.restored_tokens": message.restored_tokens,
            "dunlin.recomputed_tokens": message.recomputed_tokens,
        }
        if self._phase is not None:
            self._phase.attributes |= ways
            self._add_event(record)
        self._end_phase(record.at_s)
        self._begin_phase("decode" if self._produced else "prefill", record.sender, record)

    def _ready(self, record: DecisionRecord, message: Ready) -> None:
        self._end_phase(record.at_s)
        self._begin_phase("migration", record.sender, record)

    def _returned(self, record: DecisionRecord, message: Refused | Returned | Poisoned | Failed) -> None:
        self._add_event(record)
        name = type(message).__name__.lower()
        self._end_phase(record.at_s, error=name)
        self._end_attempt(record.at_s, name)
        self._phase = self._child_span("queue", self.owner, record.at_s)

    def _cancel(self, record: DecisionRecord, message: Cancel) -> None:
        self._add_event(record)
        if self._attempt is None or message.attempt < self._attempt_number or record.sender != self.owner:
            return
        cause = message.why.chosen if message.why is not None else "cancelled"
        self._end_phase(record.at_s, error=cause)
        self._end_attempt(record.at_s, cause)
        self._phase = self._child_span("queue", self.owner, record.at_s)

    def _closed(self, record: DecisionRecord, message: Closed) -> None:
        if record.sender != self.owner:
            return self._add_event(record)
        finish = FinishReason(message.finish).name.lower()
        cause = message.why.chosen if message.why is not None else finish
        error = cause if message.finish in FINISH_ERRORS else ""
        self._end_phase(record.at_s, error=error)
        self._end_attempt(record.at_s, error)
        attributes: Attributes = {
            "dunlin.finish": finish,
            "dunlin.generated_tokens": message.tokens,
            "dunlin.attempts": self._attempt_number,
        }
        self._root.attributes |= attributes | genai_semantics.completion_attributes(message)
        self._root.add(_event(record))
        self._finish(self._root, record.at_s, error)

    # --- parts ---

    def _add_event(self, record: DecisionRecord) -> None:
        (self._phase or self._attempt or self._root).add(_event(record))

    def _begin_phase(self, name: str, process: Address, record: DecisionRecord) -> None:
        self._phase = self._child_span(name, process, record.at_s)
        self._phase.attributes |= _why(record)

    def _child_span(self, name: str, process: Address, at_s: float) -> Span:
        parent = self._root if name in ("queue", "attempt") or self._attempt is None else self._attempt
        return self._open(name, process, at_s, parent.id)

    def _open(self, name: str, process: Address, at_s: float, parent: int, *more: object) -> Span:
        # The how-manieth of its name in its attempt: the same again if the records are read again.
        number = self._names[name, self._attempt_number] = self._names.get((name, self._attempt_number), 0) + 1
        named = span_id(self.key, name, self._attempt_number, number, *more)
        return Span(self.context.trace, named, parent, name, process, at_s)

    def _end_phase(self, at_s: float, error: str = "") -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            self._finish(phase, at_s, error)

    def _end_attempt(self, at_s: float, error: str) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._finish(attempt, at_s, error)

    def _finish(self, span: Span, at_s: float, error: str) -> None:
        span.end_s = max(at_s, span.start_s)  # clocks of two machines may disagree
        span.error = error
        self._done.append(span)


def _event(record: DecisionRecord) -> SpanEvent:
    attributes: Attributes = {"dunlin.from": record.sender.name, "dunlin.to": record.to.name}
    return SpanEvent(record.at_s, type(record.message).__name__, attributes | _why(record))


def _why(record: DecisionRecord) -> Attributes:
    return reason_attributes(getattr(record.message, "why", None))


_TURNS: dict[type[Any], Any] = {
    Admitted: RequestTrace._admitted,
    Place: RequestTrace._place,
    Accepted: RequestTrace._accepted,
    Reused: RequestTrace._reused,
    FirstToken: RequestTrace._first_token,
    Preempted: RequestTrace._preempted,
    Continued: RequestTrace._continued,
    Ready: RequestTrace._ready,
    Refused: RequestTrace._returned,
    Returned: RequestTrace._returned,
    Poisoned: RequestTrace._returned,
    Failed: RequestTrace._returned,
    Cancel: RequestTrace._cancel,
    Closed: RequestTrace._closed,
}
