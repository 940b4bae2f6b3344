"""Conditions and operations of a transaction, as etcd's messages; and what etcd makes of them."""

import asyncio

from dunlin.membership.txn import CreatedAt, DeleteOp, GetOp, ModifiedAt, PutOp, ValueIs
from dunlin.membership.values import KeyValue
from dunlin.v1 import etcd_pb2 as pb
from tests.membership.helpers import client_of


def test_transactions_compare_revisions_and_values(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as client:
            key = "/txn/a"
            made = await client.txn([CreatedAt(key, 0)], [PutOp(key, b"one")])
            assert made.succeeded
            refused = await client.txn(
                [CreatedAt(key, 0)], [PutOp(key, b"two")], [GetOp(key), GetOp("/txn/", prefix=True)]
            )
            assert not refused.succeeded
            assert refused.reads == ((KeyValue(key, b"one", made.revision, made.revision),),) * 2
            changed = await client.txn([ModifiedAt(key, made.revision), ValueIs(key, b"one")], [PutOp(key, b"two")])
            assert changed.succeeded
            assert not (await client.txn([ModifiedAt(key, made.revision)], [DeleteOp(key)])).succeeded
            assert not (await client.txn([ValueIs(key, b"one")], [DeleteOp(key)])).succeeded
            assert (await client.txn([CreatedAt(key, made.revision), ValueIs(key, b"two")], [DeleteOp(key)])).succeeded
            assert await client.get(key) is None

    asyncio.run(scenario())


def test_a_condition_on_the_creation_is_equality_with_its_revision() -> None:
    told = CreatedAt("/a", 5).encode()
    assert (told.key, told.result, told.target) == (b"/a", pb.Compare.EQUAL, pb.Compare.CREATE)
    assert (told.WhichOneof("target_union"), told.create_revision) == ("create_revision", 5)


def test_a_key_that_does_not_exist_was_created_by_write_0() -> None:
    """Sent although 0 is the field's default: without it etcd would have nothing to compare with."""
    assert CreatedAt("/a", 0).encode().WhichOneof("target_union") == "create_revision"
    assert ModifiedAt("/a", 0).encode().WhichOneof("target_union") == "mod_revision"


def test_a_condition_on_the_last_write_and_one_on_the_value() -> None:
    modified, valued = ModifiedAt("/a", 7).encode(), ValueIs("/a", b"v\0").encode()
    assert (modified.target, modified.result, modified.mod_revision) == (pb.Compare.MOD, pb.Compare.EQUAL, 7)
    assert (valued.target, valued.result, valued.value) == (pb.Compare.VALUE, pb.Compare.EQUAL, b"v\0")


def test_operations_name_their_key_range_and_lease() -> None:
    assert PutOp("/a", b"v", 9).encode() == pb.RequestOp(request_put=pb.PutRequest(key=b"/a", value=b"v", lease=9))
    assert GetOp("/a").encode() == pb.RequestOp(request_range=pb.RangeRequest(key=b"/a"))
    whole = pb.RangeRequest(key=b"/a/", range_end=b"/a0")
    assert GetOp("/a/", prefix=True).encode() == pb.RequestOp(request_range=whole)
    assert DeleteOp("/a").encode() == pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"/a"))
