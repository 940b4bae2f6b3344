"""The records of one request, a second apart, and what its spans look like."""

from collections.abc import Iterable
from typing import Any

from dunlin.effects import Address
from dunlin.messages.dispatch import (
    Accepted,
    Place,
)
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken
from dunlin.messages.types import Figure, FinishReason, RejectedOption, Why, i32
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.request_tracer import RequestTracer
from dunlin.telemetry.spans import Span

D = Address("dispatcher", "d0", 0xC)

D1 = Address("dispatcher", "d1", 0xD)

I0 = Address("instance", "i0", 10)

I1 = Address("instance", "i1", 11)

KV = Address("kvstore", "kv", 5)

CLIENT = Address("client", "http-1")

KEY = "req-c-1"

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

WHY = Why("least_loaded", "i0", (Figure("load", 0.25),), (RejectedOption("i1", "load 0.5"),))

STOPPED = Why("end", "stop")

Said = tuple[Address, Address, Any]


def place(attempt: int = 1, instance: Address = I0, handle: int = 0) -> Said:
    return D, instance, Place(1, attempt, i32([1, 2]), 2, 8, key=KEY, handle=handle, why=WHY)


def admitted(trace: str = "") -> Said:
    return D, CLIENT, Admitted(KEY, trace, Why("door admission", "queue"))


def accepted(attempt: int = 1, instance: Address = I0) -> Said:
    return instance, D, Accepted(1, attempt, 40, why=WHY)


def first(attempt: int = 1, instance: Address = I0) -> Said:
    return D, CLIENT, FirstToken(KEY, attempt, instance, WHY)


def closed(finish: FinishReason = FinishReason.STOP, why: Why = STOPPED) -> Said:
    return D, CLIENT, Closed(KEY, finish, 5, why=why)


def trace_spans(said: Iterable[Said], tracer: RequestTracer | None = None) -> list[Span]:
    """The spans of records that are one second apart, from second 100 on."""
    tracer = RequestTracer() if tracer is None else tracer
    for index, parts in enumerate(said):
        tracer.add(DecisionRecord(100.0 + index, *parts))
    return tracer.take_finished(1e9)


def outline(spans: list[Span]) -> list[tuple[str, str, str, float, float]]:
    """Name, parent's name, process, start and end, by start (the outer one first)."""
    names = {span.id: span.name for span in spans}
    ordered = sorted(spans, key=lambda span: (span.start_s, -span.end_s, span.name != "attempt"))
    return [
        (span.name, names.get(span.parent, ""), span.process.name, span.start_s - 100, span.end_s - 100)
        for span in ordered
    ]
