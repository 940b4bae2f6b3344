"""Reads what a body's output is to match: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`."""

from collections.abc import Callable, Mapping
from typing import Any

from dunlin.limits import InvalidField, brief_repr
from services.dispatcher.doors.generation.grammars import (
    ANY_OBJECT,
    AskedGrammar,
    choice_grammar,
    regex_grammar,
    schema_grammar,
    written_grammar,
)
from services.dispatcher.doors.generation.settings import flag

FORMATS = ("text", "json_object", "json_schema")
SCHEMA_NAME_CHARACTERS = 64


def asked_grammar(given: Mapping[str, Any]) -> AskedGrammar | None:
    """The grammar that a body's honoured fields ask for; None: the output is free.

    Raises:
        InvalidField: a field is malformed, or two ask for one.
    """
    pattern = _whitespace_pattern("guided_whitespace_pattern", given.get("guided_whitespace_pattern"))
    asked = [read(name, given[name], pattern) for name, read in _READERS.items() if name in given]
    found = [one for one in asked if one is not None]
    if len(found) > 1:
        raise InvalidField(found[1].name, f"cannot be given beside {found[0].name}: the output matches one format")
    if pattern is not None and "guided_json" not in given:
        raise InvalidField("guided_whitespace_pattern", "is allowed with guided_json only")
    return found[0] if found else None


def _response_format(name: str, value: Any, _: str | None) -> AskedGrammar | None:
    if not isinstance(value, Mapping) or value.get("type") not in FORMATS:
        raise InvalidField(name, f"must be an object whose type is one of {', '.join(FORMATS)}")
    kind = value["type"]
    _check_keys(name, value, ("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind == "text":
        return None
    if kind == "json_object":
        return schema_grammar(name, ANY_OBJECT)
    return _named_schema(f"{name}.json_schema", value.get("json_schema"))


def _named_schema(name: str, value: Any) -> AskedGrammar:
    if not isinstance(value, Mapping):
        raise InvalidField(name, "must be an object with name and schema")
    _check_keys(name, value, ("name", "description", "schema", "strict"))
    title = value.get("name")
    if not isinstance(title, str) or not 1 <= len(title) <= SCHEMA_NAME_CHARACTERS:
        raise InvalidField(f"{name}.name", f"must be a string of 1 to {SCHEMA_NAME_CHARACTERS} characters")
    if not isinstance(value.get("description", ""), str | None):
        raise InvalidField(f"{name}.description", "must be a string")
    if value.get("strict") is not None:
        flag(f"{name}.strict", value["strict"])
    return schema_grammar(f"{name}.schema", value.get("schema"))


def _structured_outputs(name: str, value: Any, _: str | None) -> AskedGrammar:
    if not isinstance(value, Mapping):
        raise InvalidField(name, "must be an object")
    given = {key: one for key, one in value.items() if one is not None}
    _check_keys(name, given, (*_CONSTRAINTS, *_SCHEMA_OPTIONS, "disable_fallback"))
    for key in _FLAGS:
        flag(f"{name}.{key}", given.get(key, False))
    kinds = [key for key in _CONSTRAINTS if key in given and given[key] is not False]
    if len(kinds) != 1:
        raise InvalidField(name, f"must have exactly one of {', '.join(_CONSTRAINTS)}")
    kind = f"{name}.{kinds[0]}"
    pattern = _whitespace_pattern(f"{name}.whitespace_pattern", given.get("whitespace_pattern"))
    if kinds[0] in ("json", "json_object"):
        schema = ANY_OBJECT if kinds[0] == "json_object" else given["json"]
        return schema_grammar(kind, schema, pattern, given.get("disable_any_whitespace", False))
    if pattern is not None:
        raise InvalidField(f"{name}.whitespace_pattern", "is allowed with json and json_object only")
    return _CONSTRAINTS[kinds[0]](kind, given[kinds[0]])


def _whitespace_pattern(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidField(name, f"must be a string, not {brief_repr(value)}")
    return value


def _check_keys(name: str, value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key, one in value.items():
        if key not in known and one is not None:
            raise InvalidField(f"{name}.{key}", "is not a field that is known here")


_CONSTRAINTS: dict[str, Callable[[str, Any], AskedGrammar]] = {
    "json": schema_grammar,
    "json_object": schema_grammar,
    "regex": regex_grammar,
    "choice": choice_grammar,
    "grammar": written_grammar,
}
_SCHEMA_OPTIONS = ("whitespace_pattern", "disable_any_whitespace")
_FLAGS = ("json_object", "disable_any_whitespace", "disable_fallback")
_READERS: dict[str, Callable[[str, Any, str | None], AskedGrammar | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": schema_grammar,
    "guided_regex": lambda name, value, _: regex_grammar(name, value),
    "guided_choice": lambda name, value, _: choice_grammar(name, value),
    "guided_grammar": lambda name, value, _: written_grammar(name, value),
}
