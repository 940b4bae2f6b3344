"""Tool calls by the openai package: told to the model, constrained where required, streamed, and sent back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from dunlin.text.chat_template import ChatTemplate
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.tools.formats import FORMATS, HERMES, LLAMA3, MISTRAL, ToolFormat
from tests.services.dispatcher.door_requests import MODEL, with_doors
from tests.services.dispatcher.running_doors import Doors, model

PARAMETERS = {
    "type": "object",
    "properties": {"bird": {"enum": ["heron", "dunlin"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["bird", "legs"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": "look_up", "description": "Looks", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "count", "parameters": NOTHING, "strict": True}},
]
HELLO: Any = [{"role": "user", "content": "Which bird?"}]
NAMED: Any = {"type": "function", "function": {"name": "look_up"}}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.bird }})#{{ call.id }}"
    "{% endfor %}{{ m.tool_call_id }}\n{% endfor %}{# MARK #}"
)


def caller(kind: ToolFormat) -> ServedModel:
    """A model whose template says that it writes calls so."""
    source = TEMPLATE.replace("MARK", kind.template_mark)
    return replace(model(), template=ChatTemplate(source, {}, Path("test")))


def check(name: str, arguments: str) -> None:
    called = json.loads(arguments)
    if name == "look_up":
        assert set(called) == {"bird", "legs"}
        assert called["bird"] in ("heron", "dunlin")
        assert 0 <= called["legs"] <= 9
    else:
        assert (name, called) == ("count", {})


@pytest.mark.parametrize("kind", FORMATS)
def test_required_calls_keep_to_their_schemas(kind: ToolFormat) -> None:
    async def test(cluster: Doors) -> None:
        chat = cluster.client().chat.completions
        for seed, choice in enumerate(["required", "required", NAMED]):
            asked = {"model": MODEL, "messages": HELLO, "tools": TOOLS, "tool_choice": choice, "seed": seed}
            made = await chat.create(**asked, parallel_tool_calls=False, max_tokens=300)
            (call,) = made.choices[0].message.tool_calls or []
            assert call.type == "function"
            check(call.function.name, call.function.arguments)
            assert made.choices[0].message.content is None
            assert made.choices[0].finish_reason == ("stop" if choice is NAMED else "tool_calls")
            streamed = [chunk async for chunk in await chat.create(**asked, parallel_tool_calls=False, stream=True)]
            deltas = [one for chunk in streamed for one in chunk.choices[0].delta.tool_calls or []]
            assert "".join(one.function.arguments for one in deltas) == call.function.arguments
            assert deltas[0].function.name == call.function.name
            assert len(deltas) > 1

    with_doors(test, served=caller(kind))


def test_what_the_model_says_by_itself_is_parsed() -> None:
    text = 'I look. <tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>'

    async def test(cluster: Doors) -> None:
        cluster.instance.text = cluster.gateway.model.tokenizer.encode(text, add_special_tokens=False)
        cluster.instance.end_after = len(cluster.instance.text)
        chat = cluster.client().chat.completions
        made = (await chat.create(model=MODEL, messages=HELLO, tools=TOOLS)).choices[0]
        assert (made.message.content, made.finish_reason) == ("I look.", "tool_calls")
        calls = [call.function.name for call in made.message.tool_calls or [] if call.type == "function"]
        assert calls == ["count"]
        plain = (await chat.create(model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="none")).choices[0]
        assert (plain.message.content, plain.message.tool_calls, plain.finish_reason) == (text, None, "stop")

    with_doors(test, served=caller(HERMES))


def prompt_of(cluster: Doors) -> str:
    return cluster.gateway.model.tokenizer.decode(list(cluster.instance.placed[-1].tokens))


def test_the_template_reads_tools_calls_and_answers() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"bird": "heron"}'}}
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "two legs"},
    ]

    async def test(cluster: Doors) -> None:
        chat = cluster.client().chat.completions
        await chat.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=2)
        told = prompt_of(cluster)
        assert "look_up(heron)#call_1" in told
        assert "tool:two legscall_1" in told
        assert json.dumps(PARAMETERS, sort_keys=True) in told.replace("'", '"') or '"look_up"' in told
        await chat.create(model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="none", max_tokens=2)
        assert "look_up" not in prompt_of(cluster)

    with_doors(test, served=caller(LLAMA3))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS[1:], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
         "messages.0.tool_calls.0.function.arguments"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
         "tools.0.function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
          "tool_choice": "required"}, "tools"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    async def test(cluster: Doors) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await cluster.client().chat.completions.create(
                model=MODEL, extra_body={"messages": HELLO, **fields}, messages=[]
            )
        assert caught.value.param == param, caught.value

    with_doors(test, served=caller(MISTRAL))


def test_a_model_that_calls_no_tools_says_so() -> None:
    async def test(cluster: Doors) -> None:
        with pytest.raises(openai.BadRequestError, match="writes no tool calls") as caught:
            await cluster.client().chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS)
        assert caught.value.param == "tools"

    with_doors(test)
