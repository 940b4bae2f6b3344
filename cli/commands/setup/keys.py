"""`dunlin keys`: the file of tenants and their API keys that dispatchers read (--keys)."""

import argparse
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from cli.common.errors import USAGE, CliError
from cli.common.options import Subparsers, number, whole_number
from cli.common.output import table
from dunlin.auth.tenants import (
    KEY_PREFIX,
    LIMITS,
    MOST_KEYS,
    MOST_WEIGHT,
    OBJECTIVES,
    RequestObjectives,
    Tenant,
    TenantsError,
    format_tenants,
    hash_key,
    parse_tenants,
)
from dunlin.messages.types import RequestClass
from dunlin.runtime.replace_file import replace_file

_ADD = """\
Make an API key for a tenant, print it once, and keep only its hash in FILE. A tenant that is not there yet is made.
Dispatchers started with --keys FILE take the change within a second. A limit that is left out stays as it was.

examples:
  dunlin keys add --keys keys.json --tenant acme
  dunlin keys add --keys keys.json --tenant acme --requests-per-minute 600 --tokens-per-minute 100000 --running 8
  dunlin keys add --keys keys.json --tenant night --request-class batch --weight 3
"""
_SHOWN = 12
_LIMITS = {
    "requests_per_minute": "requests that it may begin in a minute",
    "tokens_per_minute": "tokens in a minute, of prompts and answers",
    "running": "requests that it may have at once, running or waiting",
    "max_tokens": "tokens that one request may generate",
}
_OBJECTIVES = {
    "ttft_objective_s": "seconds within which the first token should come",
    "tpot_objective_s": "seconds within which each further token should come",
}


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand and its own."""
    parser = subparsers.add_parser("keys", help="API keys of tenants", description="API keys and quotas of tenants.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = commands.add_parser(
        "add", help="make a key", description=_ADD, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_file(new, run_add)
    new.add_argument("--tenant", required=True, metavar="NAME", help="whose key it is")
    for limit in LIMITS:
        flag = f"--{limit.replace('_', '-')}"
        new.add_argument(
            flag, type=whole_number(1), metavar="N", help=f"{_LIMITS[limit]} (default: as it was, at first no limit)"
        )
    for objective in OBJECTIVES:
        text = f"of its requests that do not say: {_OBJECTIVES[objective]} (default: as it was, at first the cluster's)"
        new.add_argument(f"--{objective.replace('_', '-')}", type=number(0, above=True), metavar="S", help=text)
    new.add_argument(
        "--weight",
        type=whole_number(1, MOST_WEIGHT),
        metavar="N",
        help="its share, beside other tenants', of what batch work gets (default: as it was, at first 1)",
    )
    new.add_argument(
        "--request-class",
        choices=[one.name.lower() for one in RequestClass],
        help="of all its requests, whatever they say (default: as it was, at first what each says)",
    )
    _add_file(
        commands.add_parser("list", help="tenants and their keys", description="Print tenants and keys."), run_list
    )
    gone = commands.add_parser("remove", help="forget a key or a tenant", description="Forget a key, or a tenant.")
    _add_file(gone, run_remove)
    gone.add_argument("--tenant", required=True, metavar="NAME", help="the key's owner")
    gone.add_argument("--key", default="", metavar="ID", help="as `list` shows it (default: the whole tenant)")


def _add_file(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("--keys", required=True, type=Path, metavar="FILE", help="the file, .json or .toml")
    parser.set_defaults(run=run)


def run_add(arguments: argparse.Namespace) -> int:
    """Make a key."""
    path: Path = arguments.keys
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    if path.suffix == ".toml":
        text = f"is TOML, which is yours to write: add {hash_key(key)!r} to keys of [tenants.{arguments.tenant}]"
        print(f"{path} {text}; the key, shown this once:\n{key}")
        return 0
    tenants = {tenant.name: tenant for tenant in (_read(path) if path.exists() else ())}
    tenant = tenants.get(arguments.tenant) or Tenant(arguments.tenant)
    given = (*LIMITS, "weight")
    limits = {limit: getattr(arguments, limit) for limit in given if getattr(arguments, limit) is not None}
    quota = replace(tenant.quota, tenant=tenant.name, **limits)
    asked, known = (arguments.ttft_objective_s, arguments.tpot_objective_s), tenant.objectives
    objectives = RequestObjectives(asked[0] or known.ttft_s, asked[1] or known.tpot_s)
    tenant = replace(tenant, objectives=objectives)
    if arguments.request_class is not None:
        tenant = replace(tenant, request_class=RequestClass[arguments.request_class.upper()])
    tenants[tenant.name] = replace(tenant, keys=(*tenant.keys, hash_key(key)), quota=quota)
    if len(tenants[tenant.name].keys) > MOST_KEYS:
        raise CliError(f"{tenant.name} has {MOST_KEYS} keys already; remove some first", USAGE)
    _write(path, tuple(tenants.values()))
    print(key)
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Print the tenants and their keys."""
    rows = [
        (tenant.name, *(str(getattr(tenant.quota, limit) or "") for limit in (*LIMITS, "weight")), _keys(tenant))
        for tenant in _read(arguments.keys)
    ]
    print(table(("tenant", *(limit.replace("_", " ") for limit in LIMITS), "weight", "keys"), rows))
    return 0


def _keys(tenant: Tenant) -> str:
    return "disabled" if tenant.disabled else " ".join(digest[:_SHOWN] for digest in tenant.keys)


def run_remove(arguments: argparse.Namespace) -> int:
    """Forget a key or a tenant."""
    path: Path = arguments.keys
    if path.suffix == ".toml":
        raise CliError(f"{path} is TOML, which is yours to write: take it out yourself", USAGE)
    tenants = {tenant.name: tenant for tenant in _read(path)}
    tenant = tenants.pop(arguments.tenant, None)
    if tenant is None:
        raise CliError(f"{path} has no tenant {arguments.tenant!r}", USAGE)
    if arguments.key:
        left = tuple(digest for digest in tenant.keys if not digest.startswith(arguments.key))
        if len(left) != len(tenant.keys) - 1:
            raise CliError(f"{arguments.key!r} is not one key of {tenant.name!r}: see `dunlin keys list`", USAGE)
        tenants[tenant.name] = replace(tenant, keys=left)
    _write(path, tuple(tenants.values()))
    return 0


def _read(path: Path) -> tuple[Tenant, ...]:
    try:
        return parse_tenants(path.read_bytes(), path.suffix == ".toml")
    except OSError as error:
        raise CliError(f"{path}: cannot be read ({error.strerror})", USAGE) from None
    except TenantsError as error:
        raise CliError(f"{path}: {error}", USAGE) from None


def _write(path: Path, tenants: tuple[Tenant, ...]) -> None:
    data = format_tenants(tenants).encode()
    try:
        parse_tenants(data, is_toml=False)
        replace_file(path, data, 0o600, partial(_give_rights_of, path) if path.exists() else None)
    except OSError as error:
        raise CliError(f"{path}: cannot be written ({error.strerror})", USAGE) from None
    except TenantsError as error:
        raise CliError(str(error), USAGE) from None


def _give_rights_of(path: Path, fresh: int) -> None:
    """Owner and mode as they were: the file may be root's to change and a dispatcher's to read."""
    old = path.stat()
    with suppress(PermissionError):  # only root gives files away; who may not keeps what it writes to itself
        os.fchown(fresh, old.st_uid, old.st_gid)
        os.fchmod(fresh, old.st_mode & 0o777)
