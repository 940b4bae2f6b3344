"""The grammar of calls keeps to every function's own schema; unknown formats are not taken for others."""

import json
from typing import Any

import pytest

from dunlin.structured_output.compiler import GrammarCompiler
from services.dispatcher.doors.tools.formats import (
    FORMATS,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    ToolFormat,
    call_grammar,
    format_of,
)
from tests.services.dispatcher.running_doors import model

END = 1
MODEL = model()
COMPILER = GrammarCompiler(MODEL.folder, MODEL.vocabulary, (END,))
NUMBER = {"type": "integer"}
NESTED = {"properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"], "$defs": {"x": NUMBER}}
TREE = {"properties": {"child": {"$ref": "#"}, "leaf": NUMBER}, "additionalProperties": False}


def is_call(kind: ToolFormat, called: dict[str, Any], *functions: dict[str, Any]) -> bool:
    """Whether the text of this one call is in the grammar of calls of the functions."""
    text = json.dumps(called)
    if kind is HERMES:
        text = f"<tool_call>\n{text}\n</tool_call>"
    elif kind is MISTRAL:
        text = f"[TOOL_CALLS][{text}]"
    elif kind is MISTRAL_ARGS:
        text = f"[TOOL_CALLS]{called['name']}[ARGS]{json.dumps(called['arguments'])}"
    matcher = COMPILER.matcher(call_grammar(kind, functions, False, MODEL.tokenizer.special_token))
    tokens = MODEL.tokenizer.encode(text, add_special_tokens=False)
    for token in tokens:
        if not matcher.allowed((END,))[token]:
            return False
        matcher.consume((token,))
    return bool(matcher.allowed((END,))[END])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        pytest.param(NESTED, {"x": 1}, {"x": "a"}, id="$defs, as pydantic writes models inside models"),
        pytest.param(TREE, {"child": {"leaf": 1}}, {"child": {"name": "f"}}, id="# is the schema itself"),
        pytest.param({}, {"any": 1}, 5, id="arguments are an object whatever the schema says"),
        pytest.param(None, {"any": 1}, 5, id="no schema"),
        pytest.param({"type": "object", "properties": {"x": NUMBER}, "x-guidance": {"lenient": True}}, {"x": 1},
                     {"x": "a"}, id="no option of the client's"),
    ],
)  # fmt: skip
def test_arguments_keep_to_the_functions_own_schema(kind: ToolFormat, parameters: Any, good: Any, bad: Any) -> None:
    function = {"name": "f", **({} if parameters is None else {"parameters": parameters})}
    assert is_call(kind, {"name": "f", kind.arguments_key: good}, function)
    assert not is_call(kind, {"name": "f", kind.arguments_key: bad}, function)
    assert not is_call(kind, {"name": "g", kind.arguments_key: good}, function)


def test_the_schemas_of_two_functions_are_apart() -> None:
    words = {**NESTED, "$defs": {"x": {"type": "string"}}}
    both = {"name": "f", "parameters": NESTED}, {"name": "g-1_B", "parameters": words}
    assert is_call(HERMES, {"name": "f", "arguments": {"x": 1}}, *both)
    assert is_call(HERMES, {"name": "g-1_B", "arguments": {"x": "a"}}, *both)
    assert not is_call(HERMES, {"name": "g-1_B", "arguments": {"x": 1}}, *both)
    assert not is_call(HERMES, {"name": "f", "arguments": {"x": "a"}}, *both)


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("<tool_call>{{ call | tojson }}</tool_call>", HERMES),
        ("[TOOL_CALLS] [{{ calls }}]", MISTRAL),
        ('{"name": f, "parameters": {}}', LLAMA3),
        ("{{ content }}", None),
        ("<tool_call>\n<function={{ call.name }}>\n<parameter={{ name }}>", None),
        ("<tool_call>{{ call.name }}\n<arg_key>{{ key }}</arg_key>", None),
        ("[TOOL_CALLS]{{ call.name }}[ARGS]{{ arguments }}", MISTRAL_ARGS),
        ("[TOOL_CALLS]{{ call.name }}[CALL_ID]{{ call.id }}[ARGS]{{ arguments }}", MISTRAL_ARGS),
    ],
)
def test_a_format_is_known_by_its_marks_and_others_with_these_marks_are_not(
    template: str, kind: ToolFormat | None
) -> None:
    """Qwen3-Coder, GLM and newer models of Mistral write other things between the same marks; the last is read."""
    assert format_of(template) is kind
