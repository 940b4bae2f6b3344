"""Reads what a chat request says of tools: `tools`, `tool_choice`, `parallel_tool_calls`, and the calls in messages."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dunlin.limits import InvalidField, brief_repr
from services.dispatcher.doors.generation.settings import flag

MOST_TOOLS = 128
MOST_CALL_ID_CHARACTERS = 64
NAME_PATTERN = "^[a-zA-Z0-9_-]{1,64}$"
MODES = ("none", "auto", "required")
_NAME = re.compile(NAME_PATTERN)
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a request uses tools. `functions` may be called, all of them or `named` alone (with `is_required`)."""

    functions: tuple[Json, ...] = ()
    is_required: bool = False
    named: str = ""
    is_parallel: bool = True

    @property
    def callable_functions(self) -> tuple[Json, ...]:
        """The functions of which one is to be called."""
        return tuple(one for one in self.functions if self.named in ("", one["name"]))


def read_tool_use(given: Mapping[str, Any]) -> ToolUse | None:
    """What the fields say; None: no tool is to be called.

    Raises:
        InvalidField: a field is malformed, or names a tool that is not there.
    """
    functions = _functions(given.get("tools", []))
    is_parallel = flag("parallel_tool_calls", given.get("parallel_tool_calls", True))
    mode, named = _choice(given.get("tool_choice", "auto"))
    if mode == "required" and not functions:
        raise InvalidField("tool_choice", "asks for a call, and tools has none")
    if named and named not in (one["name"] for one in functions):
        raise InvalidField("tool_choice.function.name", f"{brief_repr(named)} is none of the tools")
    if mode == "none" or not functions:
        return None
    return ToolUse(functions, mode == "required", named, is_parallel)


def read_calls(name: str, value: Any) -> list[dict[str, Any]]:
    """The `tool_calls` of an assistant's message as chat templates read them: their arguments are objects.

    Raises:
        InvalidField: they are malformed.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > MOST_TOOLS:
        raise InvalidField(name, f"must be a list of at most {MOST_TOOLS} calls")
    return [_call(f"{name}.{index}", one) for index, one in enumerate(value)]


def read_call_id(name: str, value: Any) -> str:
    """The id of a call. Raises InvalidField for what is none."""
    if not isinstance(value, str) or not 1 <= len(value) <= MOST_CALL_ID_CHARACTERS:
        raise InvalidField(name, f"must be a string of 1 to {MOST_CALL_ID_CHARACTERS} characters")
    return value


def _functions(tools: Any) -> tuple[Json, ...]:
    if isinstance(tools, str) or not isinstance(tools, Sequence) or len(tools) > MOST_TOOLS:
        raise InvalidField("tools", f"must be a list of at most {MOST_TOOLS} tools")
    functions = tuple(_function(f"tools.{index}", one) for index, one in enumerate(tools))
    if len({one["name"] for one in functions}) < len(functions):
        raise InvalidField("tools", "has two of one name")
    return functions


def _function(name: str, tool: Any) -> Json:
    function = _typed_function(name, tool)
    _check_keys(f"{name}.function", function, ("name", "description", "parameters", "strict"))
    title = function.get("name")
    if not isinstance(title, str) or not _NAME.fullmatch(title):
        raise InvalidField(f"{name}.function.name", f"must match {NAME_PATTERN}, not {brief_repr(title)}")
    if not isinstance(function.get("description"), str | None):
        raise InvalidField(f"{name}.function.description", "must be a string")
    parameters = function.get("parameters")
    if parameters is not None and not _is_object_schema(parameters):
        raise InvalidField(f"{name}.function.parameters", "must be a JSON schema of type object")
    if function.get("strict") is not None:
        flag(f"{name}.function.strict", function["strict"])
    return {key: one for key, one in function.items() if one is not None and key != "strict"}


def _is_object_schema(parameters: Any) -> bool:
    return isinstance(parameters, Mapping) and parameters.get("type", "object") == "object"


def _choice(value: Any) -> tuple[str, str]:
    """(mode, the function's name if one alone is to be called)."""
    if isinstance(value, str) and value in MODES:
        return value, ""
    if not isinstance(value, Mapping):
        raise InvalidField("tool_choice", f"must be one of {', '.join(MODES)}, or name a function")
    name = _typed_function("tool_choice", value).get("name")
    if not isinstance(name, str) or not name:
        raise InvalidField("tool_choice.function.name", "must be a string")
    return "required", name


def _call(name: str, value: Any) -> dict[str, Any]:
    function = _typed_function(name, value, ("id", "index"))
    title, arguments = function.get("name"), function.get("arguments")
    if not isinstance(title, str) or not isinstance(arguments, str):
        raise InvalidField(f"{name}.function", "must have a name, and arguments as JSON text")
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidField(f"{name}.function.arguments", "must be the JSON text of an object")
    called = {"type": "function", "function": {"name": title, "arguments": parsed}}
    return {**called, "id": read_call_id(f"{name}.id", value["id"])} if value.get("id") is not None else called


def _typed_function(name: str, value: Any, more: tuple[str, ...] = ()) -> Json:
    if not isinstance(value, Mapping) or value.get("type", "function") != "function":
        raise InvalidField(name, 'must be an object of type "function"')
    _check_keys(name, value, ("type", "function", *more))
    function = value.get("function")
    if not isinstance(function, Mapping):
        raise InvalidField(f"{name}.function", "must be an object")
    return function


def _check_keys(name: str, value: Json, known: tuple[str, ...]) -> None:
    for key, one in value.items():
        if key not in known and one is not None:
            raise InvalidField(f"{name}.{key}", "is not a field that is known here")
