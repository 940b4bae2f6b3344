"""The file of tenants: what it may hold, and that a mistake is named with its line."""

import json
import random

import pytest

from dunlin.auth.tenants import RequestObjectives, Tenant, TenantsError, format_tenants, hash_key, parse_tenants
from dunlin.messages.door import Quota
from dunlin.messages.types import RequestClass

ONE, TWO = hash_key("dk-one"), hash_key("dk-two")


def as_json(tenants: object) -> bytes:
    return json.dumps({"tenants": tenants}, indent=2).encode()


def test_json_and_toml_say_the_same() -> None:
    toml = (
        f'[tenants.acme]\nkeys = ["{ONE}"]\nrequests_per_minute = 60\nrunning = 2\n[tenants.other]\ndisabled = true\n'
    )
    text = as_json({"acme": {"keys": [ONE], "requests_per_minute": 60, "running": 2}, "other": {"disabled": True}})
    expected = (
        Tenant("acme", (ONE,), Quota("acme", requests_per_minute=60, running=2)),
        Tenant("other", (), Quota("other"), disabled=True),
    )
    assert parse_tenants(toml.encode(), is_toml=True) == parse_tenants(text, is_toml=False) == expected


def test_what_is_written_is_what_is_read() -> None:
    tenants = (
        Tenant("a ü", (ONE, TWO), Quota("a ü", 1, 2, 3, 4)),
        Tenant("b", (), Quota("b"), disabled=True),
        Tenant("c", (), Quota("c", weight=3), request_class=RequestClass.BATCH),
        Tenant("d", (), Quota("d"), objectives=RequestObjectives(0.5, 0.05)),
        Tenant("e", (), Quota("e"), objectives=RequestObjectives(None, 0.05)),
    )
    assert parse_tenants(format_tenants(tenants).encode(), is_toml=False) == tenants


WRONG = [
    ({"acme": {"keys": ["short"]}}, 4, "tenants.acme.keys: must be a list of SHA-256 hashes"),
    ({"acme": {"keys": [ONE]}, "b": {"keys": [ONE]}}, 9, "is a key of 'acme' already"),
    ({"acme": {}, "b": {"running": 0}}, 5, "tenants.b.running: must be a whole number from 1"),
    ({"acme": {}, "b": {"max_tokens": True}}, 5, "tenants.b.max_tokens: must be a whole number"),
    ({"acme": {}, "b": {"max_tokens": 1.5}}, 5, "must be a whole number"),
    ({"acme": {"keys": [], "runing": 3}}, 5, "tenants.acme.runing: is not known; a tenant has keys"),
    ({"acme": {}, "b": {"weight": 0}}, 5, "tenants.b.weight: must be a whole number from 1 to 1000"),
    ({"acme": {"weight": 1001}}, 4, "tenants.acme.weight: must be a whole number from 1 to 1000"),
    ({"acme": {"disabled": 1}}, 4, "tenants.acme.disabled: must be true or false"),
    ({"acme": {"request_class": "urgent"}}, 4, "must be one of interactive, batch"),
    ({"acme": {"ttft_objective_s": 0}}, 4, "tenants.acme.ttft_objective_s: must be above 0"),
    ({"acme": {"tpot_objective_s": "fast"}}, 4, "must be a number, not 'fast'; leave it out for the cluster's"),
    ({"acme": 3}, 3, "tenants.acme: must be a table"),
    ([], 2, "tenants: must be a table"),
    ({"": {}}, 2, "a tenant's name has 1 to 256"),
]


@pytest.mark.parametrize(("tenants", "line", "text"), WRONG)
def test_a_mistake_is_named_with_its_line(tenants: object, line: int, text: str) -> None:
    with pytest.raises(TenantsError) as caught:
        parse_tenants(as_json(tenants), is_toml=False)
    assert str(caught.value).startswith(f"line {line}: "), caught.value
    assert text in str(caught.value)


BROKEN = [
    (b'{\n"tenants": {\n', False, "line 3: no JSON"),
    (b"{}", False, "line 1: tenants: the file holds `tenants`"),
    (b'{"tenants": {}, "more": 1}', False, "the file holds `tenants`, and nothing beside it"),
    (b'{"tenants": {"a": {},\n "a": {}}}', False, "'a' stands there twice"),
    (b"[]", False, "must be a table"),
    (b"\n\n\xff", False, "line 3: not UTF-8"),
    (b"[tenants.a]\nrunning = = 3\n", True, "line 2: no TOML"),
    (b"[tenants.a]\nrunning = 3\nrunning = 4\n", True, "no TOML"),
    (b"[" * 100_000, False, "line 1"),
    (b'{"tenants": {"a": {"running": ' + b"1" * 5_000 + b"}}}", False, "thousands of digits"),
    (b"[tenants.a]\nrunning = " + b"1" * 5_000, True, "thousands of digits"),
]


@pytest.mark.parametrize(("data", "is_toml", "text"), BROKEN)
def test_what_is_no_such_file_is_named(data: bytes, is_toml: bool, text: str) -> None:
    with pytest.raises(TenantsError, match=r"^line \d+: ") as caught:
        parse_tenants(data, is_toml)
    assert text in str(caught.value)


def test_no_bytes_do_more_than_be_refused() -> None:
    random_ = random.Random(7)
    good = format_tenants((Tenant("acme", (ONE,), Quota("acme", 1, 2, 3, 4)),)).encode()
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(random_.randint(1, 6)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        for is_toml in (False, True):
            try:
                parse_tenants(bytes(data), is_toml)
            except TenantsError:
                refused += 1
    assert refused > 3000
