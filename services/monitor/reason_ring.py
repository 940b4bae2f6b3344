"""The recorded reasons: a bounded ring of decision messages, and which of them concern a request.

Most name the request. A step names sequences, which `Accepted` and `Continued` tie to a request; orders, suspicions and
stopped engines name an instance, and count while the request was dispatched to it. Decides nothing and words no text.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from dunlin.effects import Address, Message
from dunlin.messages.engine import Step
from dunlin.messages.fleet import Reason
from dunlin.messages.plan import GroupOrder
from dunlin.messages.subjects import References, RequestKey, parse_request, references_of
from services.monitor.attempt_spans import AttemptSpan, attempt_spans

K = TypeVar("K")
Decode = Callable[[str, bytes], Message]


@dataclass(frozen=True, slots=True)
class RecordedReason:
    """One record of the ring: `number` orders records that have the same time."""

    number: int
    reason: Reason
    refs: References

    @property
    def order(self) -> tuple[float, int]:
        """By time, then by arrival."""
        return self.reason.at_s, self.number


class ReasonRing:
    """The newest reasons, at most `max_records` and `max_bytes` of payload. `lost` counts those no longer here."""

    def __init__(self, max_records: int, max_bytes: int, decode: Decode) -> None:
        self.lost = 0
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._decode = decode
        self._entries: deque[RecordedReason] = deque()
        self._bytes = 0
        self._numbers = 0
        self._of_request: dict[RequestKey, deque[RecordedReason]] = {}
        self._renamed: dict[RequestKey, deque[RecordedReason]] = {}
        self._of_instance: dict[Address, deque[RecordedReason]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, reason: Reason) -> None:
        """Keep a reason; the oldest make room. One that cannot be decoded counts as lost."""
        try:
            message = self._decode(reason.kind, reason.payload)
        except ValueError:
            self.lost += 1
            return
        refs = references_of(reason.sender, reason.to, message)
        self._numbers += 1
        entry = RecordedReason(self._numbers, reason, refs)
        self._entries.append(entry)
        self._bytes += len(reason.payload)
        if refs.request is not None:
            self._of_request.setdefault(refs.request, deque()).append(entry)
        if refs.public is not None and refs.public != refs.request:
            self._renamed.setdefault(refs.public, deque()).append(entry)
        if refs.instance is not None and refs.request is None:
            self._of_instance.setdefault(refs.instance, deque()).append(entry)
        while len(self._entries) > self._max_records or self._bytes > self._max_bytes:
            self._evict()

    def records_of(self, request: str, limit: int) -> tuple[Reason, ...]:
        """The records that concern a request by its public id, oldest first; beyond `limit` the middle is left out."""
        key = parse_request(request)
        direct = sorted(self._by_request(key) if key else (), key=lambda entry: entry.order)
        found = {entry.number: entry for entry in direct}
        for attempt in attempt_spans([(entry.reason.at_s, entry.refs) for entry in direct]):
            for entry in self._by_instance(attempt):
                found[entry.number] = entry
        records = [entry.reason for entry in sorted(found.values(), key=lambda entry: entry.order)]
        if len(records) > limit:
            records = records[: limit // 2] + records[len(records) - (limit - limit // 2) :]
        return tuple(records)

    def _by_request(self, key: RequestKey) -> list[RecordedReason]:
        """The records that name the request, by its public id or by the number that an adopting dispatcher gave it."""
        names = dict.fromkeys((key, *(entry.refs.request for entry in self._renamed.get(key, ()))))
        return [entry for name in names if name is not None for entry in self._of_request.get(name, ())]

    def _by_instance(self, attempt: AttemptSpan) -> list[RecordedReason]:
        """The records that concern the instance of an attempt, and thereby the request."""
        entries = sorted(self._of_instance.get(attempt.instance, ()), key=lambda entry: entry.order)
        steps = [entry for entry in entries if entry.refs.names_any(attempt.sequences)]
        end_s = attempt.end_s if attempt.end_s is not None else _silent_end_s(entries, steps, attempt)
        found = steps + [entry for entry in entries if entry.refs.ticket in attempt.tickets]
        orders = [entry for entry in entries if entry.reason.kind == GroupOrder.__name__]
        found += [entry for entry in orders if entry.reason.at_s <= attempt.start_s][-1:]
        for entry in entries:
            if entry.refs.whole_instance and attempt.start_s < entry.reason.at_s <= end_s:
                found.append(entry)
        return found

    def _evict(self) -> None:
        entry = self._entries.popleft()
        self._bytes -= len(entry.reason.payload)
        self.lost += 1
        refs = entry.refs
        if refs.request is not None:
            _drop_first(self._of_request, refs.request)
            if refs.public is not None and refs.public != refs.request:
                _drop_first(self._renamed, refs.public)
        elif refs.instance is not None:
            _drop_first(self._of_instance, refs.instance)


def _silent_end_s(entries: list[RecordedReason], steps: list[RecordedReason], attempt: AttemptSpan) -> float:
    """When the request left its instance without a record: at the first step after its own without a row of it."""
    if attempt.starts_waiting or not steps or steps[-1].reason.at_s < attempt.last_s:
        return inf
    later = [entry for entry in entries if entry.reason.kind == Step.__name__ and entry.order > steps[-1].order]
    return later[0].reason.at_s if later else inf


def _drop_first(index: dict[K, deque[RecordedReason]], key: K) -> None:
    index[key].popleft()
    if not index[key]:
        del index[key]
