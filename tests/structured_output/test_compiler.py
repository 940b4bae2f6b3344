"""Grammars of every kind: what is chosen of what they allow matches, and the tokens alone decide what is allowed."""

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dunlin.messages.types import Grammar, GrammarKind
from dunlin.structured_output import compiler
from dunlin.structured_output.compiler import GrammarCompiler, GrammarError
from dunlin.structured_output.matcher import GrammarMatcher, RejectingMatcher
from dunlin.text.tokenizer import load_tokenizer
from tests.text.builtin import BUILTIN

TOKENIZER = load_tokenizer(BUILTIN)
END = 1
PADDED = TOKENIZER.vocab_size + 7
"""Models have more logits than their tokenizers have tokens."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["heron", "dunlin"]},
        "seen": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "seen"],
    "additionalProperties": False,
}
GBNF = 'root ::= "a" ("b" | "c") root2\nroot2 ::= [0-9] [0-9]'


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def is_a_bird(text: str) -> bool:
    bird = json.loads(text)
    assert list(bird) == ["name", "age", "kind", "seen"]
    assert isinstance(bird["name"], str)
    assert len(bird["name"]) <= 12
    assert all(isinstance(one, bool) for one in bird["seen"])
    assert 1 <= len(bird["seen"]) <= 3
    return 0 <= bird["age"] <= 150 and bird["kind"] in ("heron", "dunlin")


KINDS: list[tuple[Grammar, Callable[[str], Any]]] = [
    (schema(SCHEMA), is_a_bird),
    (Grammar(GrammarKind.REGEX, r"[a-f]{2,5}(-\d{1,3})?"), re.compile(r"[a-f]{2,5}(-\d{1,3})?").fullmatch),
    (Grammar(GrammarKind.LARK, 'start: "yes" | "no" | "naïve 🦜"'), lambda text: text in ("yes", "no", "naïve 🦜")),
    (Grammar(GrammarKind.LARK, GBNF), re.compile(r"a[bc]\d\d").fullmatch),
]


def make() -> GrammarCompiler:
    return GrammarCompiler(BUILTIN, PADDED, (END, 6))


def choose(matcher: GrammarMatcher, seed: int, most: int = 400) -> list[int]:
    """Tokens chosen at random of those allowed, up to an end token."""
    draw, tokens = random.Random(seed), list[int]()
    while len(tokens) < most:
        token = draw.choice(np.flatnonzero(matcher.allowed((END,))).tolist())
        if token == END:
            return tokens
        tokens.append(token)
        matcher.consume((token,))
    raise AssertionError(f"no end: {TOKENIZER.decode(tokens)!r}")


@pytest.mark.parametrize(("grammar", "is_match"), KINDS)
def test_whatever_is_chosen_of_what_is_allowed_matches(grammar: Grammar, is_match: Callable[[str], Any]) -> None:
    grammars = make()
    for seed in range(15):
        tokens = choose(grammars.matcher(grammar), seed)
        assert is_match(TOKENIZER.decode(tokens)), TOKENIZER.decode(tokens)
        assert TOKENIZER.vocab_size > max(tokens)


def test_special_tokens_beyond_the_models_own_are_never_allowed(tmp_path: Path) -> None:
    values = json.loads((BUILTIN / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    values["added_tokens"].append({"id": TOKENIZER.vocab_size, "content": "<image>", **flags})
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    matcher = GrammarCompiler(tmp_path, TOKENIZER.vocab_size, (END, 6)).matcher(KINDS[0][0])
    wanted = make().matcher(KINDS[0][0]).allowed((END,))
    assert np.array_equal(matcher.allowed((END,)), wanted[: TOKENIZER.vocab_size])
    assert is_a_bird(TOKENIZER.decode(choose(matcher, 1)))


@pytest.mark.parametrize("grammar", [grammar for grammar, _ in KINDS])
def test_the_tokens_alone_decide_what_is_allowed(grammar: Grammar) -> None:
    """A text that comes back after a loss is matched anew from its tokens."""
    tokens = choose(make().matcher(grammar), 3)
    running = make().matcher(grammar)
    for length, token in enumerate(tokens):
        recovered = make().matcher(grammar)
        recovered.consume(tokens[:length])
        assert np.array_equal(recovered.allowed((END,)), running.allowed((END,)))
        assert recovered.is_complete == running.is_complete
        running.consume((token,))


def test_texts_of_one_grammar_do_not_know_each_other() -> None:
    grammars = make()
    first, second = grammars.matcher(KINDS[1][0]), grammars.matcher(KINDS[1][0])
    before = second.allowed((END,))
    first.consume(TOKENIZER.encode("abc", add_special_tokens=False))
    assert np.array_equal(second.allowed((END,)), before)


def end_tokens(matcher: GrammarMatcher, stop_ids: Sequence[int]) -> list[int]:
    return [token for token in (END, 6) if matcher.allowed(stop_ids)[token]]


def test_end_tokens_come_when_the_text_may_end_and_none_else_when_it_must() -> None:
    matcher = make().matcher(Grammar(GrammarKind.REGEX, "ab?"))
    assert end_tokens(matcher, (END, 6)) == []
    matcher.consume(TOKENIZER.encode("a", add_special_tokens=False))
    assert not matcher.is_complete
    assert end_tokens(matcher, (END, 6)) == [END, 6], "every end token of the model ends it"
    assert end_tokens(matcher, (6,)) == [6]
    assert matcher.allowed(()).any()
    matcher.consume(TOKENIZER.encode("b", add_special_tokens=False))
    assert matcher.is_complete
    assert np.flatnonzero(matcher.allowed((END, 6))).tolist() == [END, 6]


def test_a_text_that_left_its_grammar_has_no_next_token() -> None:
    matcher = make().matcher(Grammar(GrammarKind.REGEX, "ab?"))
    matcher.consume(TOKENIZER.encode("x", add_special_tokens=False))
    assert matcher.error
    assert not matcher.is_complete
    assert not matcher.allowed((END,)).any()
    assert not RejectingMatcher(9).allowed((END,)).any()


WRONG = [
    (schema({"type": "nothing"}), "type"),
    (schema({"$ref": "http://example.org/schema"}), ""),
    (Grammar(GrammarKind.REGEX, "a("), ""),
    (schema({"type": "integer", "multipleOf": 99_999_989, "minimum": 3}), "fuel"),
    (
        schema({"type": "object", "properties": {f"field {index}": {"type": "string"} for index in range(1500)}}),
        "items",
    ),
    (Grammar(GrammarKind.LARK, "start: nothing"), "nothing"),
    (Grammar(GrammarKind.LARK, 'root ::= "a'), ""),
]


@pytest.mark.parametrize(("grammar", "text"), WRONG)
def test_what_cannot_be_compiled_says_why(grammar: Grammar, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        make().check(grammar)
    assert text in str(caught.value)
    assert 0 < len(str(caught.value)) <= compiler.MOST_ERROR_CHARACTERS + 1


def test_what_no_text_matches_cannot_be_kept_to() -> None:
    with pytest.raises(GrammarError, match="no text matches it"):
        make().check(Grammar(GrammarKind.REGEX, r"[^\s\S]"))


@pytest.mark.parametrize("grammar", [grammar for grammar, _ in KINDS])
def test_what_can_be_kept_to_passes(grammar: Grammar) -> None:
    make().check(grammar)


def test_white_space_has_a_bound() -> None:
    """A weak model would go on with it for ever."""
    matcher = make().matcher(schema({"type": "object"}))
    matcher.consume(TOKENIZER.encode("{" + " " * compiler.MOST_WHITESPACE, add_special_tokens=False))
    assert not matcher.error
    assert not any(TOKENIZER.token_text(token).isspace() for token in np.flatnonzero(matcher.allowed(())).tolist())


def test_only_the_last_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_one = compiler._compile

    def watched(tokenizer: Any, grammar: Grammar) -> Any:
        compiled.append(grammar.text)
        return compile_one(tokenizer, grammar)

    monkeypatch.setattr(compiler, "MOST_COMPILED", 2)
    monkeypatch.setattr(compiler, "_compile", watched)
    grammars = make()
    for text in "abacab":
        grammars.matcher(Grammar(GrammarKind.REGEX, text))
    assert compiled == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("folder", "ends", "text"), [(BUILTIN, (), "no end token"), (Path("/nowhere"), (1,), "tokenizer")]
)
def test_a_model_that_cannot_be_constrained_says_so(folder: Path, ends: tuple[int, ...], text: str) -> None:
    with pytest.raises(GrammarError, match=text):
        GrammarCompiler(folder, PADDED, ends).matcher(KINDS[0][0])
