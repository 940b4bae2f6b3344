"""Parses the file of tenants: the users of a cluster, the hashes of their API keys, and their quotas. JSON or TOML.

    {"tenants": {"acme": {"keys": ["<sha256 of a key, hex>"], "requests_per_minute": 600, "running": 8}}}

A key is 256 random bits: a plain hash of it reveals nothing, and needs no salt. Pure: files are read and written
elsewhere.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dunlin.limits import MOST_TENANT_CHARACTERS, OBJECTIVE_S, InvalidField
from dunlin.messages.door import Quota
from dunlin.messages.types import RequestClass

KEY_PREFIX = "dk-"
MOST_TENANTS = 10_000
MOST_KEYS = 100
MOST_FILE_BYTES = 16 << 20
OBJECTIVES = ("ttft_objective_s", "tpot_objective_s")
LIMITS = ("requests_per_minute", "tokens_per_minute", "running", "max_tokens")
MOST_WEIGHT = 1000

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST = (1 << 31) - 1


class TenantsError(ValueError):
    """The file is invalid; the text says what is wrong, and in which line."""


@dataclass(frozen=True, slots=True)
class RequestObjectives:
    """Seconds within which the first token, and each further one, should come; None: the cluster's objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None


NO_OBJECTIVES = RequestObjectives()


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `keys` are hashes of its API keys; calls of a `disabled` tenant are refused.

    `request_class`: all its requests are of this class, whatever they say; None: each says its own. `objectives` are
    those of its requests that have none of their own.
    """

    name: str
    keys: tuple[str, ...] = ()
    quota: Quota = field(default_factory=lambda: Quota(""))
    disabled: bool = False
    request_class: RequestClass | None = None
    objectives: RequestObjectives = NO_OBJECTIVES


def hash_key(key: str) -> str:
    """The hash of an API key as it stands in the file: SHA-256 in hexadecimal.

    Any text has one: a header's bytes that are no UTF-8 are read as lone surrogates.
    """
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def parse_tenants(data: bytes, is_toml: bool) -> tuple[Tenant, ...]:
    """The tenants in the bytes of a file.

    Raises:
        TenantsError: the file is too long, not JSON (or TOML), or has a value that is not allowed.
    """
    if len(data) > MOST_FILE_BYTES:
        raise TenantsError(f"{len(data)} bytes; at most {MOST_FILE_BYTES} are read")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TenantsError(f"line {line}: not UTF-8") from error
    values = _toml(text) if is_toml else _json(text)
    try:
        return _tenants(values)
    except _InvalidValue as wrong:
        raise TenantsError(f"line {_line(text, wrong.path)}: {'.'.join(wrong.path)}: {wrong}") from wrong


def format_tenants(tenants: tuple[Tenant, ...]) -> str:
    """The tenants as JSON text that `parse_tenants` reads."""
    values = {tenant.name: _values(tenant) for tenant in tenants}
    return json.dumps({"tenants": values}, indent=2, ensure_ascii=False) + "\n"


_LONG_NUMBER = "line 1: somewhere a whole number has thousands of digits"


class _InvalidValue(ValueError):
    """A value that is not allowed, and the path of names that leads to it."""

    def __init__(self, path: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.path = path


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise TenantsError(f"line {error.lineno}: no JSON: {error.msg}") from error
    except RecursionError as error:
        raise TenantsError("line 1: nested too deeply") from error
    except _InvalidValue as wrong:
        raise TenantsError(f"line {_line(text, wrong.path)}: {wrong.path[0]!r} {wrong}") from wrong
    except ValueError as error:
        raise TenantsError(_LONG_NUMBER) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _InvalidValue((next(name for name in names if names.count(name) > 1),), "stands there twice")
    return found


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"\(at line (\d+)", str(error))
        where = line.group(1) if line else str(text.count("\n") + 1)
        raise TenantsError(f"line {where}: no TOML: {error}") from error
    except RecursionError as error:
        raise TenantsError("line 1: nested too deeply") from error
    except ValueError as error:
        raise TenantsError(_LONG_NUMBER) from error


def _tenants(values: Any) -> tuple[Tenant, ...]:
    given = _mapping((), values).get("tenants")
    if given is None or len(values) > 1:
        raise _InvalidValue(("tenants",), "the file holds `tenants`, and nothing beside it")
    named = _mapping(("tenants",), given)
    if len(named) > MOST_TENANTS:
        raise _InvalidValue(("tenants",), f"{len(named)} tenants; at most {MOST_TENANTS} are taken")
    tenants = tuple(_tenant(name, value) for name, value in named.items())
    owners: dict[str, str] = {}
    for tenant in tenants:
        for digest in tenant.keys:
            if digest in owners:
                raise _InvalidValue(
                    ("tenants", tenant.name, "keys"), f"{digest[:12]}… is a key of {owners[digest]!r} already"
                )
            owners[digest] = tenant.name
    return tenants


def _tenant(name: str, value: Any) -> Tenant:
    path = ("tenants", name)
    if not 1 <= len(name) <= MOST_TENANT_CHARACTERS or not name.isprintable():
        raise _InvalidValue(path, f"a tenant's name has 1 to {MOST_TENANT_CHARACTERS} printable characters")
    given = _mapping(path, value)
    for field_name in given:
        if field_name not in FIELDS:
            raise _InvalidValue((*path, field_name), f"is not known; a tenant has {', '.join(FIELDS)}")
    read = {field_name: FIELDS[field_name]((*path, field_name), one) for field_name, one in given.items()}
    limits = {limit: read.get(limit) for limit in LIMITS}
    quota = Quota(name, **limits, weight=read.get("weight", 1))
    objectives = RequestObjectives(*map(read.get, OBJECTIVES))
    return Tenant(name, read.get("keys", ()), quota, read.get("disabled", False), read.get("request_class"), objectives)


def _mapping(path: tuple[str, ...], value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _InvalidValue(path, "must be a table of names and values")
    return value


def _limit(path: tuple[str, ...], value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise _InvalidValue(path, f"must be a whole number from 1 to {_MOST}; leave it out for no limit")
    return value


def _weight(path: tuple[str, ...], value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WEIGHT:
        raise _InvalidValue(path, f"must be a whole number from 1 to {MOST_WEIGHT}; leave it out for 1")
    return value


def _objective(path: tuple[str, ...], value: Any) -> float:
    try:
        return OBJECTIVE_S(path[-1], value)
    except InvalidField as error:
        raise _InvalidValue(path, f"{error.text}; leave it out for the cluster's") from None


def _keys(path: tuple[str, ...], value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in value):
        raise _InvalidValue(
            path, "must be a list of SHA-256 hashes, 64 hexadecimal digits each: `dunlin keys add` makes them"
        )
    if len(value) > MOST_KEYS:
        raise _InvalidValue(path, f"{len(value)} keys; at most {MOST_KEYS} are taken")
    return tuple(value)


def _flag(path: tuple[str, ...], value: Any) -> bool:
    if not isinstance(value, bool):
        raise _InvalidValue(path, "must be true or false")
    return value


def _class(path: tuple[str, ...], value: Any) -> RequestClass:
    classes = {one.name.lower(): one for one in RequestClass}
    if not isinstance(value, str) or value not in classes:
        raise _InvalidValue(path, f"must be one of {', '.join(classes)}; leave it out for what each request says")
    return classes[value]


FIELDS: dict[str, Callable[[tuple[str, ...], Any], Any]] = {
    "keys": _keys,
    **dict.fromkeys(LIMITS, _limit),
    "weight": _weight,
    **dict.fromkeys(OBJECTIVES, _objective),
    "disabled": _flag,
    "request_class": _class,
}


def _values(tenant: Tenant) -> dict[str, Any]:
    limits = {limit: getattr(tenant.quota, limit) for limit in LIMITS}
    values: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    if tenant.quota.weight != 1:
        values["weight"] = tenant.quota.weight
    objectives = zip(OBJECTIVES, (tenant.objectives.ttft_s, tenant.objectives.tpot_s), strict=True)
    values |= {name: value for name, value in objectives if value is not None}
    if tenant.disabled:
        values["disabled"] = True
    if tenant.request_class is not None:
        values["request_class"] = tenant.request_class.name.lower()
    return {"keys": list(tenant.keys), **values}


def _line(text: str, path: tuple[str, ...]) -> int:
    """The line of the value at `path`, found by searching for the names of the path in order."""
    at = 0
    for name in path:
        found = re.compile(rf'(?<![\w-])"?{re.escape(name)}"?(?=[\s.\]:=])').search(text, at)
        at = found.start() if found else at
    return text.count("\n", 0, at) + 1
