"""Keys as bytes and back, ranges of a prefix, and etcd's key-values as ours."""

import pytest

from dunlin.membership.values import KeyValue, key_bytes, key_text, prefix_end
from dunlin.v1 import etcd_pb2 as pb


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("a", b"b"), ("/m/", b"/m0"), ("", b"\0"), (key_text(b"a\xff"), b"b"), (key_text(b"\xff"), b"\0")],
)
def test_prefix_end(prefix: str, end: bytes) -> None:
    assert prefix_end(prefix) == end


def test_keys_of_any_bytes_survive_as_text() -> None:
    assert key_bytes(key_text(b"/a\xff\xfe/\xc3\xa4")) == b"/a\xff\xfe/\xc3\xa4"


@pytest.mark.parametrize("prefix", ["/m/", "a", key_text(b"a\xff")])
def test_every_key_of_a_prefix_lies_before_its_end_and_the_next_one_does_not(prefix: str) -> None:
    assert key_bytes(prefix) < key_bytes(prefix) + b"\xff\xff" < prefix_end(prefix)
    assert not prefix_end(prefix).startswith(key_bytes(prefix))


def test_a_key_value_is_taken_out_of_etcds_message() -> None:
    told = pb.KeyValue(key=b"/a\xff", value=b"\0v", create_revision=3, mod_revision=9, version=4, lease=77)
    assert KeyValue.of(told) == KeyValue(key_text(b"/a\xff"), b"\0v", 3, 9, 77)
    assert KeyValue.of(pb.KeyValue(key=b"k")).lease_id == 0
