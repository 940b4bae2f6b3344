"""What a body's output is to match: every way to ask for it, and every way to ask wrongly."""

import json
from typing import Any

import pytest

from dunlin.limits import MOST_GRAMMAR_BYTES, InvalidField
from dunlin.messages.types import Grammar, GrammarKind
from services.dispatcher.doors.openai.request import parse_chat, parse_completion

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "ä"}}}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":"ä"}}}'
JSON = Grammar(GrammarKind.JSON_SCHEMA, TEXT)
ANY = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
REGEX = Grammar(GrammarKind.REGEX, "a+")
LARK = Grammar(GrammarKind.LARK, 'start: "a"')
CHOICE = Grammar(GrammarKind.LARK, 'start: "yes" | "\\"no\\"" | "na\\u00efve"')


def asked(**fields: Any) -> tuple[str, Grammar | None]:
    made = parse_completion({"prompt": "x", **fields})
    assert parse_chat({"messages": [{"role": "user", "content": "x"}], **fields}).settings.sampling == (
        made.settings.sampling
    )
    return made.grammar_field, made.settings.sampling.grammar


def json_schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", **fields}}


@pytest.mark.parametrize(
    ("fields", "field", "grammar"),
    [
        ({"response_format": {"type": "text"}}, "", None),
        ({"response_format": {"type": "json_object"}}, "response_format", ANY),
        ({"response_format": json_schema(schema=SCHEMA, strict=True)}, "response_format.json_schema.schema", JSON),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "structured_outputs.json", JSON),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "structured_outputs.json", JSON),
        (
            {"structured_outputs": {"json_object": True, "disable_fallback": True}},
            "structured_outputs.json_object",
            ANY,
        ),
        ({"structured_outputs": {"regex": "a+", "json_object": False}}, "structured_outputs.regex", REGEX),
        ({"structured_outputs": {"choice": ["yes", '"no"', "naïve"]}}, "structured_outputs.choice", CHOICE),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar", LARK),
        ({"guided_json": SCHEMA}, "guided_json", JSON),
        ({"guided_json": TEXT}, "guided_json", JSON),
        ({"guided_regex": "a+"}, "guided_regex", REGEX),
        ({"guided_choice": ["yes", '"no"', "naïve"]}, "guided_choice", CHOICE),
        ({"guided_grammar": 'start: "a"'}, "guided_grammar", LARK),
    ],
)
def test_what_is_asked_for(fields: dict[str, Any], field: str, grammar: Grammar | None) -> None:
    assert asked(**fields) == (field, grammar)


def test_white_space_is_the_clients_to_choose() -> None:
    for fields, options in (
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}, {"whitespace_pattern": " ?"}),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}}, {"whitespace_pattern": " ?"}),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, {"whitespace_flexible": False}),
    ):
        grammar = asked(**fields)[1]
        assert grammar is not None
        assert json.loads(grammar.text) == {**SCHEMA, "x-guidance": options}


DEEP: Any = {"type": "object"}
for _ in range(3000):
    DEEP = {"not": DEEP}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"response_format": "json"}, "response_format: must be an object whose type"),
        ({"response_format": {"type": "xml"}}, "response_format: must be an object whose type"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x: is not a field"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: must be an object"),
        ({"response_format": json_schema()}, "response_format.json_schema.schema: must be a JSON schema"),
        ({"response_format": json_schema(schema={"kind": 1})}, "response_format.json_schema.schema: is no JSON schema"),
        ({"response_format": json_schema(schema=SCHEMA, name=1)}, "response_format.json_schema.name: must be a string"),
        ({"response_format": json_schema(schema=SCHEMA, strict=1)}, "response_format.json_schema.strict: must be"),
        ({"response_format": json_schema(schema=DEEP)}, "inside each other"),
        ({"structured_outputs": {}}, "structured_outputs: must have exactly one of json"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs: must have exactly one of json"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag: is not a field"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "with json and json_object only"),
        ({"guided_json": "{"}, "guided_json: must be a JSON schema"),
        ({"guided_regex": ""}, "guided_regex: must be a string that is not empty"),
        ({"guided_regex": "a" * (MOST_GRAMMAR_BYTES + 1)}, f"guided_regex: has {MOST_GRAMMAR_BYTES + 1} bytes"),
        ({"guided_json": {"const": "ä" * MOST_GRAMMAR_BYTES}}, "guided_json: has "),
        ({"guided_regex": "\ud800"}, "guided_regex: is not valid Unicode"),
        ({"guided_choice": []}, "guided_choice: must be a list of 1 to 1024"),
        ({"guided_choice": ["a", ""]}, "guided_choice.1: must be a string that is not empty"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice: cannot be given beside guided_regex"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern: is allowed with"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos: cannot be given where the output is constrained"),
        ({"guided_regex": "a", "allowed_token_ids": [1]}, "allowed_token_ids: cannot be given where"),
        ({"guided_regex": "a", "bad_words": ["a"]}, "bad_words: cannot be given where"),
    ],
)
def test_what_is_asked_wrongly_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        asked(**fields)
    assert text in str(caught.value)
