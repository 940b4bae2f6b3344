"""From what a client asks its output to match to a `Grammar`. Knows no protocol, and compiles nothing.

`name` is the field that asked, for errors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dunlin.limits import MOST_GRAMMAR_BYTES, InvalidField, brief_repr, check_grammar
from dunlin.messages.types import Grammar, GrammarKind

MOST_CHOICE_TEXTS = 1024
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_KEYWORDS = frozenset(
    "type properties required additionalProperties patternProperties propertyNames minProperties maxProperties items "
    "prefixItems minItems maxItems uniqueItems contains enum const anyOf oneOf allOf not if then else $ref $defs "
    "definitions $schema $id $comment title description default examples format pattern minLength maxLength minimum "
    "maximum exclusiveMinimum exclusiveMaximum multipleOf".split()
)


@dataclass(frozen=True, slots=True)
class AskedGrammar:
    """A grammar and the request field that asked for it."""

    name: str
    grammar: Grammar


def schema_grammar(
    name: str, schema: Any, whitespace_pattern: str | None = None, is_compact: bool = False
) -> AskedGrammar:
    """A JSON schema: an object, or its JSON text. `is_compact`: without white space, where no pattern for it is given.

    Raises:
        InvalidField: it is neither, has no keyword of a schema, or is too large.
    """
    if isinstance(schema, str):
        schema = _parsed(name, schema)
    if not isinstance(schema, Mapping):
        raise InvalidField(name, f"must be a JSON schema, which is an object, not {brief_repr(schema)}")
    if schema and not _KEYWORDS.intersection(schema):
        raise InvalidField(name, "is no JSON schema: it has none of a schema's keywords, such as type or properties")
    options: dict[str, Any] = {}
    if whitespace_pattern is not None:
        options["whitespace_pattern"] = whitespace_pattern
    elif is_compact:
        options["whitespace_flexible"] = False
    if options:
        schema = {**schema, "x-guidance": options}
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise InvalidField(name, "has too many objects and lists inside each other") from None
    return _asked(name, GrammarKind.JSON_SCHEMA, text)


def regex_grammar(name: str, pattern: Any) -> AskedGrammar:
    """A regular expression that the whole text matches. Raises InvalidField for what is no text, or too long."""
    return _asked(name, GrammarKind.REGEX, _text(name, pattern))


def written_grammar(name: str, text: Any) -> AskedGrammar:
    """A grammar in Lark's notation, or in GBNF. Raises InvalidField for what is no text, or too long."""
    return _asked(name, GrammarKind.LARK, _text(name, text))


def choice_grammar(name: str, choices: Any) -> AskedGrammar:
    """One of several texts. Raises InvalidField for what is no list of texts, or too long."""
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not 1 <= len(choices) <= MOST_CHOICE_TEXTS:
        raise InvalidField(name, f"must be a list of 1 to {MOST_CHOICE_TEXTS} strings")
    texts = [_text(f"{name}.{index}", choice) for index, choice in enumerate(choices)]
    return _asked(name, GrammarKind.LARK, "start: " + " | ".join(json.dumps(text) for text in texts))


def _parsed(name: str, text: str) -> Any:
    if len(text) > MOST_GRAMMAR_BYTES:
        raise InvalidField(name, f"has {len(text)} characters; at most {MOST_GRAMMAR_BYTES} bytes are allowed")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidField(name, f"must be a JSON schema, not {brief_repr(text)}") from None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidField(name, f"must be a string that is not empty, not {brief_repr(value)}")
    return value


def _asked(name: str, kind: GrammarKind, text: str) -> AskedGrammar:
    grammar = Grammar(kind, text)
    check_grammar(name, grammar)
    return AskedGrammar(name, grammar)
