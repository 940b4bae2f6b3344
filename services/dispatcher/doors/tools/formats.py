"""The formats in which models write tool calls, found by their chat templates, and the grammars of calls."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dunlin.messages.types import Grammar, GrammarKind

Json = Mapping[str, Any]
_SPACED = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""Calls are spelled as models learnt them: `{"name": "f", "arguments": {"a": 1}}`."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written: objects with `name` and `arguments_key`, each after `start` and before `end`.

    An empty `start`: the whole text is calls, or there are none. `is_list`: one `start`, then all calls in a JSON list.
    With an `arguments_mark` a call is no object: its bare name, perhaps `id_mark` and an id, the mark, and the object
    of its arguments. `separator` is between calls. `template_mark` is in the chat templates of models that write so.
    """

    name: str
    template_mark: str
    start: str
    end: str = ""
    arguments_key: str = "arguments"
    is_list: bool = False
    separator: str = ""
    id_characters: int = 24
    arguments_mark: str = ""
    id_mark: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that may be special tokens."""
        return tuple(filter(None, (self.start, self.end, self.arguments_mark, self.id_mark)))


HERMES = ToolFormat("hermes", "<tool_call>", "<tool_call>", "</tool_call>", separator="\n")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", is_list=True, separator=", ", id_characters=9)
MISTRAL_ARGS = ToolFormat(
    "mistral_args", "[ARGS]", "[TOOL_CALLS]", id_characters=9, arguments_mark="[ARGS]", id_mark="[CALL_ID]"
)
LLAMA3 = ToolFormat("llama3", '"parameters"', "", arguments_key="parameters", separator="; ")
FORMATS = (HERMES, MISTRAL_ARGS, MISTRAL, LLAMA3)
"""Hermes is Qwen's, too; `mistral_args` is Mistral's from 2025 on, whose mark `[TOOL_CALLS]` is that of before."""
OTHER_MARKS = ("<function=", "<arg_key>")
"""In the templates of models that write no such objects, though their marks may be the same: Qwen3-Coder, GLM."""


def format_of(template: str) -> ToolFormat | None:
    """The format of the model with this chat template; None: it calls no tools, or in a format that is not known."""
    if any(mark in template for mark in OTHER_MARKS):
        return None
    return next((one for one in FORMATS if one.template_mark in template), None)


def call_grammar(
    kind: ToolFormat, tools: Sequence[Json], is_parallel: bool, token_of: Callable[[str], int | None]
) -> Grammar:
    """One call of one of `tools` (their `function` objects), or several where `is_parallel`, and nothing else.

    `token_of` names the special token of a text, None where it is ordinary text.
    """
    arguments_mark = _spelled(kind.arguments_mark, token_of)
    rules = [_call_rules(kind, index, one, arguments_mark) for index, one in enumerate(tools)]
    calls = " | ".join(f"call_{index}" for index in range(len(tools)))
    start, end = _spelled(kind.start, token_of), _spelled(kind.end, token_of)
    call = (
        "call"
        if kind.is_list
        else " ".join(filter(None, (start, kind.end and r'"\n"', "call", kind.end and r'"\n"', end)))
    )
    more = f"({json.dumps(kind.separator)} one)*" if kind.separator else "one*"
    calls_text = f"one {more}" if is_parallel else "one"
    whole = f'{start} "[" {calls_text} "]"' if kind.is_list else calls_text
    return Grammar(GrammarKind.LARK, f"start: {whole}\none: {call}\ncall: {calls}\n{''.join(rules)}")


def _call_rules(kind: ToolFormat, index: int, function: Json, arguments_mark: str) -> str:
    """One function's call. Its parameters are a schema of their own: what `$ref` names lies within them."""
    schema = {"type": "object", **function.get("parameters", {}), "x-guidance": _SPACED}
    name = function["name"]  # of letters, digits, _ and -
    call = f'/\\{{"name": ?"{name}", ?"{kind.arguments_key}": ?/ arguments_{index} "}}"'
    if arguments_mark:
        call = f'"{name}" {arguments_mark} arguments_{index}'
    return f"call_{index}: {call}\narguments_{index}: %json {json.dumps(schema)}\n"


def _spelled(text: str, token_of: Callable[[str], int | None]) -> str:
    """The mark in Lark's notation: a special token by its id, other text as itself."""
    token = token_of(text) if text else None
    return f"<[{token}]>" if token is not None else json.dumps(text) if text else ""
