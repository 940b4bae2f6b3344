"""Explains a request's course: one sentence per recorded decision, out of the decision messages alone.

Pure: a sentence depends on its own record, and on the time at which the request was first dispatched. Which records
concern a request is found out where they are kept (the monitor); what is here only leaves out those that name another.
"""

from collections.abc import Sequence

from dunlin.effects import Message
from dunlin.messages.lifecycle import Closed, FirstToken
from dunlin.messages.subjects import RequestKey, parse_request, references_of
from dunlin.messages.types import FinishReason
from dunlin.telemetry.decisions import DecisionRecord, counted, describe_record

FINISHES = {
    FinishReason.RUNNING: "it ended",
    FinishReason.STOP: "it stopped by itself (stop: an end token, or a stop text of the request)",
    FinishReason.LENGTH: "it had as many tokens as it may (length: max_tokens, or what the model holds)",
    FinishReason.CANCELLED: "it was cancelled",
    FinishReason.DEADLINE: "its time was up (deadline)",
    FinishReason.ERROR: "it failed (error)",
    FinishReason.TOO_LONG: "the cluster could not hold so many tokens (too_long)",
}
_FIRST = "first_token_s"


def explain(records: Sequence[DecisionRecord], request: str) -> list[str]:
    """One sentence per record, in the given order, with the seconds since the first that names the request itself.

    Args:
        records: decision messages, oldest first.
        request: the public id, `req-<dispatcher incarnation>-<number>`, both hexadecimal.

    Raises:
        ValueError: `request` is no such id.
    """
    key = request_key(request)
    mine = [(record, _names(record)) for record in records]
    names = {key, *(named for record, named in mine if _key_of(record.message) == request)}
    mine = [(record, named) for record, named in mine if named is None or named in names]
    starts = [record.at_s for record, named in mine if named] or [record.at_s for record, _ in mine]
    return [f"{record.at_s - starts[0]:+.3f} s  {describe_record(record)}" for record, _ in mine]


def until_request_end(records: Sequence[DecisionRecord], request: str) -> list[DecisionRecord]:
    """The records up to the request's end, without what other processes did afterwards.

    Raises:
        ValueError: `request` is no public id.
    """
    request_key(request)
    closed = [index for index, record in enumerate(records) if _ends(record.message, request)]
    if not closed:
        return list(records)
    return [record for index, record in enumerate(records) if index <= closed[-1] or _names(record) is not None]


def request_outcome(records: Sequence[DecisionRecord], request: str) -> str:
    """One sentence on how the request ended."""
    closed = [record.message for record in records if _ends(record.message, request)]
    if not closed:
        return "no end is recorded: it still runs, or the record was lost with its dispatcher"
    last = closed[-1]
    assert isinstance(last, Closed)
    figures = {figure.name: figure.value for figure in last.why.figures} if last.why is not None else {}
    parts = [f"{FINISHES[last.finish]}, after {counted(last.tokens, 'token', 'tokens')}"]
    if "seconds" in figures:
        parts.append(f"{figures['seconds']:.3f} s from its arrival to its end")
    first = [record.message.why for record in records if isinstance(record.message, FirstToken)]
    waits = [figure.value for why in first if why is not None for figure in why.figures if figure.name == _FIRST]
    if waits:
        parts.append(f"{waits[0]:.3f} s to its first token")
    if "attempts" in figures:
        parts.append(counted(int(figures["attempts"]), "attempt", "attempts"))
    return "; ".join(parts)


def _ends(message: Message, request: str) -> bool:
    return isinstance(message, Closed) and message.request == request


def request_key(request: str) -> RequestKey:
    """(dispatcher incarnation, number) of a public id.

    Raises:
        ValueError: it is none.
    """
    key = parse_request(request)
    if key is None:
        raise ValueError(f"{request!r} is not a request id: expected req-<incarnation>-<number>, both hex")
    return key


def _key_of(message: Message) -> str:
    """The public id that a message names; regions are named by it behind their tenant's name."""
    key: str = getattr(message, "key", "")
    return key.rpartition("/")[2]


def _names(record: DecisionRecord) -> RequestKey | None:
    """The request that a record names itself, if any."""
    return references_of(record.sender, record.to, record.message).request
