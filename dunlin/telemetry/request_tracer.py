"""The traces of all running requests: orders the records of several processes, and sorts them by request. Pure.

Bounded: beyond the most stories the oldest is ended as cut, and beyond the most waiting records the earliest is told.
"""

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Any

from dunlin.effects import Address
from dunlin.messages.declare import declaration_of
from dunlin.messages.dispatch import Cancel
from dunlin.messages.lifecycle import Closed
from dunlin.telemetry import genai_semantics
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.spans import RequestTrace, Span, reason_attributes
from dunlin.telemetry.trace_context import span_id, trace_context

RequestName = tuple[int, int]
"""(incarnation of the dispatcher, its number of the request)."""


class RequestTracer:
    """Owns the stories. `truncated_total` counts those that ended without a record of their end."""

    def __init__(self, patience_s: float = 0.5, most_stories: int = 20_000, most_waiting: int = 100_000) -> None:
        self.truncated_total = 0
        self._patience_s = patience_s
        self._most = most_stories
        self._most_waiting = most_waiting
        self._waiting: list[tuple[float, int, DecisionRecord]] = []
        self._numbers = 0
        self._stories: OrderedDict[str, RequestTrace] = OrderedDict()
        self._keys: OrderedDict[RequestName, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stories)

    def add(self, record: DecisionRecord) -> None:
        """Keep a record until those of the same time from other processes had the time to arrive.

        What does not say what it is about is no decision, and its fields are not those of one.
        """
        said = declaration_of(type(record.message))
        if said is None or said.about is None:
            return
        self._numbers += 1
        heappush(self._waiting, (record.at_s, self._numbers, record))

    def take_finished(self, now_s: float) -> list[Span]:
        """The spans that ended, as far as the records are old enough to be told."""
        spans: list[Span] = []
        while self._is_due(now_s - self._patience_s):
            spans += self._take(heappop(self._waiting)[2])
        return spans

    def _is_due(self, by_s: float) -> bool:
        # A process whose clock runs ahead says what would wait here until its time has come: hours, perhaps.
        return len(self._waiting) > self._most_waiting or (bool(self._waiting) and self._waiting[0][0] <= by_s)

    def _take(self, record: DecisionRecord) -> list[Span]:
        key = self._key_of(record)
        if key is None:
            return []
        if not key:
            return _refusal(record) if isinstance(record.message, Closed) else []
        story = self._stories.get(key)
        if story is None:
            story = self._begin(key, record)
        if story is None:
            return []
        spans = story.add(record)  # an unsampled one too: it is to end as well, at the dispatcher that has it then
        if isinstance(record.message, Closed) and record.sender == story.owner:
            del self._stories[key]
        return (spans if story.context.sampled else []) + self._make_room(record.at_s)

    def _begin(self, key: str, record: DecisionRecord) -> RequestTrace | None:
        """A story begins with any record of a live request that a dispatcher sent.

        A `Cancel` is sent right after the end of a request that is given up: it would begin another story of it.
        """
        message: Any = record.message
        if isinstance(message, Closed | Cancel) or record.sender.role != "dispatcher":
            return None
        context = trace_context(getattr(message, "trace", ""), key)
        story = self._stories[key] = RequestTrace(key, context, record.sender, record.at_s)
        return story

    def _key_of(self, record: DecisionRecord) -> str | None:
        """The public id of the request that a record names; empty for one that was refused, None for none."""
        message: Any = record.message
        number = getattr(message, "request", None)
        if isinstance(number, str):
            return number
        named: str = getattr(message, "key", "").rpartition("/")[2]  # a region's begins with its tenant
        dispatcher = next((one for one in _ends(record) if one.role == "dispatcher"), None)
        if dispatcher is None or number is None:
            return named or None
        name = (dispatcher.incarnation, number)
        if named:
            self._keys[name] = named
            if len(self._keys) > 2 * self._most:
                self._keys.popitem(last=False)
        return named or self._keys.get(name, f"req-{name[0]:x}-{name[1]:x}")

    def _make_room(self, now_s: float) -> list[Span]:
        spans: list[Span] = []
        while len(self._stories) > self._most:
            self.truncated_total += 1
            story = self._stories.popitem(last=False)[1]
            spans += story.truncate(now_s, "no end was recorded") if story.context.sampled else []
        return spans


def _ends(record: DecisionRecord) -> tuple[Address, ...]:
    """The addresses whose numbering the record's request number may follow."""
    stated = getattr(record.message, "dispatcher", None)
    return (record.sender, record.to) if stated is None else (stated,)


def _refusal(record: DecisionRecord) -> list[Span]:
    """A request that the door did not take is one span of its client's trace."""
    message = record.message
    assert isinstance(message, Closed)
    context = trace_context(message.trace, f"{record.sender} {record.to}")
    if not context.sampled:
        return []
    named = span_id(f"{record.sender} {record.to}", "refused")
    span = Span(context.trace, named, context.parent, _refused_name(message), record.sender, record.at_s, record.at_s)
    span.serves = True
    span.attributes |= reason_attributes(message.why) | genai_semantics.rejection_attributes(message)
    span.error = message.why.chosen if message.why is not None else "refused"
    return [span]


def _refused_name(message: Closed) -> str:
    """A model that is not here may be called anything, and the names of spans are to be few: the operation alone."""
    return (message.origin.operation if message.origin is not None else "") or genai_semantics.UNKNOWN
