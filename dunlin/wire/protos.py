"""The .proto files of the internal conversations, made of the messages: `python -m dunlin.wire.protos` writes them.

A message's class (`dunlin/messages/declare.py`) is the one place where it is declared; its .proto is what protoc and
other languages read. `public.proto` and `etcd.proto` are contracts with others, and written by hand. Needs no stub, so
that it runs before there are any.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

from dunlin.effects import Address
from dunlin.messages import agent, batches, dispatch, engine, exchange, fleet, group, lifecycle, placement, plan, pool
from dunlin.messages import types as nouns
from dunlin.messages.declare import Declaration, Method, Parties, declaration_of, numbers_of

VOCABULARIES = (nouns, agent, engine, dispatch, group, pool, exchange, placement, plan, fleet, lifecycle, batches)
"""The modules whose .proto is made."""

_PACKAGE = "dunlin.v1"
_SCALARS = {int: "int64", float: "double", bool: "bool", str: "string", bytes: "bytes"}
_COLUMNS = {"b": "int8", "i": "int32", "q": "int64", "f": "float32"}


def path_of(vocabulary: types.ModuleType) -> Path:
    """Where the .proto of a vocabulary lies, from `proto/` on; so it is imported, too."""
    return Path(*_PACKAGE.split("."), f"{vocabulary.__name__.rpartition('.')[2]}.proto")


def write(protos: Path) -> list[Path]:
    """Write the files below the folder `protos` that are not what their messages say; returns those."""
    texts = {protos / path_of(vocabulary): text_of(vocabulary) for vocabulary in VOCABULARIES}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")
    return stale


def text_of(vocabulary: types.ModuleType) -> str:
    """The whole .proto of one vocabulary.

    Raises:
        TypeError: a field's type has no form on the wire.
    """
    source = f"{vocabulary.__name__.replace('.', '/')}.py"
    made = f"// Made of {source} by `make protos`: edit that file, not this one.\n//\n"
    head = f'{made}{_comment(vocabulary)}syntax = "proto3";'
    imports = "\n".join(f'import "{path}";' for path in sorted(map(str, _imported(vocabulary))))
    kinds = _declared(vocabulary)
    own = [_enum(kind) if issubclass(kind, IntEnum) else _message(kind) for kind in kinds]
    parties: Parties | None = getattr(vocabulary, "PARTIES", None)
    own += _stream(parties, kinds) if parties is not None else []
    own += _services([value for value in vars(vocabulary).values() if isinstance(value, Method)])
    return "\n\n".join(part for part in (head, f"package {_PACKAGE};", imports, *own) if part) + "\n"


def _declared(vocabulary: types.ModuleType) -> list[type[Any]]:
    """What a module declares for the wire, in the order of its source."""
    own = [kind for kind in vars(vocabulary).values() if getattr(kind, "__module__", "") == vocabulary.__name__]
    wired = [kind for kind in own if isinstance(kind, type) and (issubclass(kind, IntEnum) or declaration_of(kind))]
    return [Address, *wired] if vocabulary is nouns else wired


def _imported(vocabulary: types.ModuleType) -> list[Path]:
    """The other files whose types a vocabulary names; the envelopes name the header."""
    hints = [hint for kind in _declared(vocabulary) for hint in _hints(kind).values()]
    named = [_inner(hint)[1] for hint in hints] + ([nouns.Header] if hasattr(vocabulary, "PARTIES") else [])
    return [path_of(one) for one in VOCABULARIES if one is not vocabulary and {*_declared(one)} & {*named}]


def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in numbers_of(kind)}


def _inner(hint: Any) -> tuple[str, Any]:
    """(label, type) of a field: `X | None` is optional, `tuple[X, ...]` repeated."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return "optional", next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return "repeated", typing.get_args(hint)[0]
    return "", hint


def _message(kind: type[Any]) -> str:
    reserved = (declaration_of(kind) or Declaration()).reserved
    lines = [_field(name, number, _hints(kind)[name]) for name, number in numbers_of(kind).items()]
    lines += [f"reserved {', '.join(map(str, reserved))};"] if reserved else []
    return _block(f"{_comment(kind)}message {kind.__name__}", lines)


def _field(name: str, number: int, hint: Any) -> str:
    if typing.get_origin(hint) is typing.Annotated:
        return f"bytes {name} = {number};  // packed {_COLUMNS[hint.__metadata__[0]]}"
    label, kind = _inner(hint)
    scalar = _SCALARS.get(kind)
    if scalar is None and not (isinstance(kind, type) and (issubclass(kind, IntEnum) or numbers_of(kind))):
        raise TypeError(f"{name}: {hint} has no form on the wire")
    # A message is absent unless it is set; a scalar must say so.
    label = "" if label == "optional" and scalar is None else label
    return f"{label} {scalar or kind.__name__} {name} = {number};".lstrip()


def _enum(kind: type[IntEnum]) -> str:
    prefix = _snake(kind.__name__).upper()
    return _block(f"{_comment(kind)}enum {kind.__name__}", [f"{prefix}_{item.name} = {item.value};" for item in kind])


def _stream(parties: Parties, kinds: list[type[Any]]) -> list[str]:
    """The envelopes of both directions, and the service whose method carries them."""
    dialer, acceptor = f"the dialer ({' or '.join(parties.dialers)})", f"the acceptor ({parties.acceptor})"
    command, event = f"{parties.name}Command", f"{parties.name}Event"
    attach = f"rpc Attach(stream {command}) returns (stream {event});"
    service = _block(f"// One long-lived stream per pair of processes.\nservice {parties.name}", [attach])
    return [
        _envelope(f"// From {dialer} to {acceptor}.\nmessage {command}", _travelling(kinds, lambda said: said.command)),
        _envelope(f"// From {acceptor} to {dialer}.\nmessage {event}", _travelling(kinds, lambda said: said.event)),
        *([service] if parties.is_service else []),
    ]


def _travelling(kinds: list[type[Any]], place: Callable[[Declaration], int | None]) -> dict[int, type[Any]]:
    """The messages of one direction by their numbers there."""
    places = {kind: place(declaration_of(kind) or Declaration()) for kind in kinds}
    found = {number: kind for kind, number in places.items() if number is not None}
    if len(found) < sum(number is not None for number in places.values()):
        raise TypeError(f"two messages of {kinds[0].__module__} have the same number in one direction")
    return found


def _envelope(head: str, bodies: dict[int, type[Any]]) -> str:
    fields = [f"  {kind.__name__} {_snake(kind.__name__)} = {place};" for place, kind in sorted(bodies.items())]
    return _block(head, ["Header header = 1;", "oneof body {", *fields, "}"])


def _services(methods: list[Method[Any, Any]]) -> list[str]:
    """Those of the unary methods, by the service that has them."""
    of_service: dict[str, list[str]] = {}
    for method in methods:
        request, response = ("stream " if many else "" for many in (method.uploads, method.streams))
        way = f"rpc {method.name}({request}{method.request.__name__}) "
        way += f"returns ({response}{method.response.__name__});"
        of_service.setdefault(method.service.removeprefix(f"{_PACKAGE}."), []).append(way)
    return [_block(f"service {name}", lines) for name, lines in of_service.items()]


def _block(head: str, lines: list[str]) -> str:
    return "\n".join([f"{head} {{", *(f"  {line}" for line in lines), "}"])


def _comment(thing: object) -> str:
    return "".join(f"// {line}".rstrip() + "\n" for line in (inspect.getdoc(thing) or "").splitlines())


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


if __name__ == "__main__":
    print("\n".join(f"wrote {path}" for path in write(Path("proto"))) or "every .proto is up to date")
