"""W3C trace contexts: reading a client's `traceparent`, and naming traces and spans that come without an id. Pure.

Ids that are made here are hashes of what they name, so that every process, also one started again, makes the same ones.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Trace id (128 bits), parent span id of our spans (64 bits, 0: none), and whether the trace is sampled."""

    trace: int
    parent: int = 0
    sampled: bool = True


def valid_traceparent(traceparent: str | None) -> str:
    """The header as it came, empty if it is malformed: the standard has a broken one ignored, not refused."""
    return traceparent if traceparent and _parse(traceparent) is not None else ""


def trace_context(traceparent: str, key: str) -> TraceContext:
    """The trace context of a request: its client's, else one derived from the request's id `key`."""
    return _parse(traceparent) or TraceContext(_hash(16, "trace", key))


def span_id(key: str, *what: object) -> int:
    """The id of one span: a hash of the request's id `key` and the span's kind, attempt and number."""
    return _hash(8, "span", key, *what)


def _parse(text: str) -> TraceContext | None:
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    version, trace, parent, flags, more = match.groups()
    known = version != "ff" and (version != "00" or more is None)
    if not known or not int(trace, 16) or not int(parent, 16):
        return None
    return TraceContext(int(trace, 16), int(parent, 16), bool(int(flags, 16) & _SAMPLED))


def _hash(size_bytes: int, *parts: object) -> int:
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=size_bytes).digest()
    return int.from_bytes(digest, "big") or 1
