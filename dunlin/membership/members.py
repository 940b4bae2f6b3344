"""Member records in etcd, and the watch that turns them into membership messages.

A record lies at /dunlin/members/<role>/<name> as JSON. Readers ignore fields that they do not know, and skip records
that they cannot read: one bad record never hides the others. What a lost registration means is for the cores to judge.
"""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

from dunlin.effects import Address
from dunlin.membership.client import EtcdClient
from dunlin.membership.registration import OnState, Registration
from dunlin.membership.values import KeyValue
from dunlin.membership.watch import DeletedEvent, PrefixWatch, PutEvent, ResetEvent, WatchEvent
from dunlin.messages.membership import Member, MemberDown, MemberMessage, MembersReset, MemberUp
from dunlin.messages.types import I64_MOST

_log = logging.getLogger(__name__)

PREFIX = "/dunlin/members/"


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """What a process says of itself. `endpoint` is its gRPC door; `extra` names others, such as {"http": "host:port"}.

    Incarnation 0 marks the placeholder of a registration that is not finished.
    """

    role: str
    name: str
    node: str
    endpoint: str
    pid: int
    incarnation: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, text in (("role", self.role), ("name", self.name)):
            if not text or "/" in text:
                raise ValueError(f"a member's {what} must be non-empty and without '/': {text!r}")
        _check_text(self.role, self.name, self.node, self.endpoint, *self.extra, *self.extra.values())

    @property
    def key(self) -> str:
        """Where the record lies."""
        return f"{PREFIX}{self.role}/{self.name}"

    def encode(self) -> bytes:
        """As JSON; equal records give equal bytes."""
        fields = {
            "role": self.role,
            "name": self.name,
            "incarnation": self.incarnation,
            "node": self.node,
            "endpoint": self.endpoint,
            "pid": self.pid,
            "extra": dict(self.extra),
        }
        return json.dumps(fields, sort_keys=True).encode()

    @staticmethod
    def decode(data: bytes) -> "MemberRecord":
        """Raises ValueError saying what is wrong."""
        try:
            fields = json.loads(data)
            return MemberRecord(
                role=_text(fields["role"]),
                name=_text(fields["name"]),
                node=_text(fields["node"]),
                endpoint=_text(fields["endpoint"]),
                pid=_number(fields["pid"]),
                incarnation=_number(fields["incarnation"]),
                extra={_text(name): _text(value) for name, value in fields.get("extra", {}).items()},
            )
        except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a member record ({type(error).__name__}: {error})") from error

    def member(self) -> Member:
        """As the cores see it."""
        return Member(Address(self.role, self.name, self.incarnation), self.endpoint, self.node, self.pid)


def register(
    client: EtcdClient, record: MemberRecord, *, ttl_s: int = 5, on_state: OnState | None = None
) -> Registration:
    """A registration of `record` (its incarnation does not matter), not started yet."""

    def value_for(incarnation: int) -> bytes:
        return replace(record, incarnation=incarnation).encode()

    return Registration(client, record.key, value_for, _incarnation_of, ttl_s=ttl_s, on_state=on_state)


class MemberTable:
    """The members that are registered, out of watch events. Pure: the same events give the same messages."""

    def __init__(self) -> None:
        self._up: dict[str, Member] = {}

    def apply(self, event: WatchEvent) -> list[MemberMessage]:
        """Take one event in; returns what the cores should hear."""
        match event:
            case ResetEvent():
                return [self._reset(event.items)]
            case PutEvent():
                return self._put(event.item)
            case DeletedEvent():
                gone = self._up.pop(event.key, None)
                return [MemberDown(gone.address)] if gone else []

    def _reset(self, items: tuple[KeyValue, ...]) -> MembersReset:
        records = ((item.key, _readable(item)) for item in items)
        self._up = {key: record.member() for key, record in records if record is not None}
        return MembersReset(tuple(self._up.values()))

    def _put(self, item: KeyValue) -> list[MemberMessage]:
        record = _readable(item)
        if record is None:
            return []
        old, new = self._up.get(item.key), record.member()
        self._up[item.key] = new
        if old is not None and old.address != new.address:
            return [MemberDown(old.address), MemberUp(new)]
        return [MemberUp(new)]


class MemberWatch:
    """`async for message in MemberWatch(client)`: first a MembersReset, then what changes. Never ends, never raises."""

    def __init__(self, client: EtcdClient) -> None:
        self._watch = PrefixWatch(client, PREFIX)
        self._table = MemberTable()

    @property
    def connected(self) -> bool:
        """Whether etcd is being heard right now; if not, the membership is as old as the last message."""
        return self._watch.connected

    async def __aiter__(self) -> AsyncIterator[MemberMessage]:
        async for event in self._watch:
            for message in self._table.apply(event):
                yield message


def _incarnation_of(value: bytes) -> int | None:
    try:
        return MemberRecord.decode(value).incarnation
    except ValueError:
        return None


def _readable(item: KeyValue) -> MemberRecord | None:
    """The record, or None for a placeholder and for what cannot be read."""
    try:
        record = MemberRecord.decode(item.value)
        if record.key != item.key:
            raise ValueError(f"it calls itself {record.key!a}")
    except ValueError as error:
        _log.warning("skipping the member record at %a: %s", item.key, error)
        return None
    return record if record.incarnation > 0 else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: str | float) -> int:
    number = int(value)
    if not 0 <= number <= I64_MOST:
        raise ValueError(f"{number} is not a number from 0 to {I64_MOST}")
    return number


def _check_text(*texts: str) -> None:
    """Raises ValueError for one that no message can carry."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{text!r} is not text in UTF-8") from None
