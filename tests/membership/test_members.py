import asyncio
import json
from dataclasses import replace

import pytest

from dunlin.effects import Address
from dunlin.membership.members import MemberRecord, MemberTable, MemberWatch, register
from dunlin.membership.values import KeyValue
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from tests.membership.helpers import client_of, until


def record(role: str = "instance", name: str = "i0", incarnation: int = 5, endpoint: str = "h:1") -> MemberRecord:
    return MemberRecord(role, name, node="n0", endpoint=endpoint, pid=42, incarnation=incarnation)


def member(role: str = "instance", name: str = "i0", incarnation: int = 5, endpoint: str = "h:1") -> Member:
    return Member(Address(role, name, incarnation), endpoint, "n0", 42)


def item(of: MemberRecord) -> KeyValue:
    return KeyValue(of.key, of.encode(), 1, 1)


def test_a_record_survives_the_way_through_json() -> None:
    one = MemberRecord("dispatcher", "d0", "n0", "h:1", 42, 7, {"http": "h:2"})
    assert MemberRecord.decode(one.encode()) == one
    assert one.key == "/dunlin/members/dispatcher/d0"


def test_fields_of_later_versions_are_ignored() -> None:
    fields = json.loads(record().encode()) | {"zone": "b"}
    del fields["extra"]
    assert MemberRecord.decode(json.dumps(fields).encode()) == record()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"role": "a"}', record().encode().replace(b"42", b'"x"'), b"\xff"]
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the text is json's own in half of the cases)
        MemberRecord.decode(data)


@pytest.mark.parametrize(("role", "name"), [("", "a"), ("a", ""), ("a/b", "c"), ("a", "b/c")])
def test_names_that_would_not_be_one_key_are_refused(role: str, name: str) -> None:
    with pytest.raises(ValueError, match="without '/'"):
        record(role, name)


def test_a_table_turns_events_into_messages() -> None:
    table = MemberTable()
    assert table.apply(ResetEvent(1, (item(record(name="i0")), item(record(name="i1"))))) == [
        MembersReset((member(name="i0"), member(name="i1")))
    ]
    assert table.apply(PutEvent(item(record(name="i2")))) == [MemberUp(member(name="i2"))]
    assert table.apply(DeletedEvent(record(name="i1").key, 9)) == [MemberDown(member(name="i1").address)]
    assert table.apply(DeletedEvent(record(name="i1").key, 9)) == []
    assert table.apply(ResetEvent(9, (item(record(name="i3")),))) == [MembersReset((member(name="i3"),))]
    assert table.apply(DeletedEvent(record(name="i0").key, 10)) == []


def test_a_newer_incarnation_takes_the_older_one_down() -> None:
    table = MemberTable()
    table.apply(PutEvent(item(record(incarnation=5))))
    assert table.apply(PutEvent(item(record(incarnation=0)))) == []
    assert table.apply(PutEvent(item(record(incarnation=8)))) == [
        MemberDown(member(incarnation=5).address),
        MemberUp(member(incarnation=8)),
    ]
    assert table.apply(PutEvent(item(record(incarnation=8, endpoint="h:2")))) == [
        MemberUp(member(incarnation=8, endpoint="h:2"))
    ]


def test_records_that_cannot_be_read_hide_no_member() -> None:
    table = MemberTable()
    bad = KeyValue("/dunlin/members/instance/bad", b"{", 1, 1)
    stranger = KeyValue("/dunlin/members/instance/liar", record(name="i0").encode(), 1, 1)
    reset = ResetEvent(1, (bad, item(record()), stranger, item(record(name="new", incarnation=0))))
    assert table.apply(reset) == [MembersReset((member(),))]
    assert table.apply(PutEvent(bad)) == []
    assert table.apply(DeletedEvent(bad.key, 4)) == []


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("pid", "1e999"),
        ("pid", str(1 << 63)),
        ("incarnation", "Infinity"),
        ("incarnation", str(1 << 63)),
        ("node", r'"\ud800"'),
        ("endpoint", r'"h\udcff:1"'),
        ("extra", "[" * 100_000),
    ],
)
def test_a_record_that_no_message_could_carry_is_skipped(field: str, text: str) -> None:
    """Read, it would end every process of the cluster: the next message that names the member has no bytes."""
    own = record()
    data = own.encode().replace(f'"{field}": {_json(own, field)}'.encode(), f'"{field}": {text}'.encode())
    assert data != own.encode()
    assert MemberTable().apply(PutEvent(KeyValue(own.key, data, 1, 1))) == []


def test_a_record_whose_key_is_not_utf8_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    key = "/dunlin/members/instance/\udcff"
    data = record().encode().replace(b'"i0"', rb'"\udcff"')
    assert MemberTable().apply(PutEvent(KeyValue(key, data, 1, 1))) == []
    assert r"/dunlin/members/instance/\udcff" in caplog.text, "a log that is UTF-8 can have it"


def test_a_process_cannot_have_a_name_that_is_not_utf8() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        record(name="i\udcff")


def _json(own: MemberRecord, field: str) -> str:
    return json.dumps(json.loads(own.encode())[field])


@pytest.mark.processes
def test_members_are_seen_coming_and_going(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            first = register(client, record(name="w0"), ttl_s=60)
            await first.start()
            heard: list[object] = []

            async def listen() -> None:
                async for message in MemberWatch(client):
                    heard.append(message)

            listening = asyncio.create_task(listen())
            await until(lambda: len(heard) == 1)
            assert heard == [MembersReset((member(name="w0", incarnation=first.incarnation),))]
            second = register(client, record(role="monitor", name="w1"), ttl_s=60)
            await second.start()
            await until(lambda: len(heard) == 2)
            await first.stop()
            await second.stop()
            await until(lambda: len(heard) == 4)
            assert heard[1:] == [
                MemberUp(member("monitor", "w1", second.incarnation)),
                MemberDown(Address("instance", "w0", first.incarnation)),
                MemberDown(Address("monitor", "w1", second.incarnation)),
            ]
            listening.cancel()

    asyncio.run(scenario())


@pytest.mark.processes
def test_a_member_takes_its_key_back_from_an_older_process_of_its_name(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            own = record(name="twice")
            older, younger = register(client, own, ttl_s=600), register(client, own, ttl_s=2)
            await older.start()
            await younger.start()
            await client.put(own.key, replace(own, incarnation=older.incarnation).encode())
            ours = replace(own, incarnation=younger.incarnation).encode()
            async with asyncio.timeout(300):
                while (item := await client.get(own.key)) is None or item.value != ours:
                    await asyncio.sleep(0.05)
            await older.stop()
            await younger.stop()

    asyncio.run(scenario())
