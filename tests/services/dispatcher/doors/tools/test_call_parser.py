"""Tool calls in the text of an answer: found however it is cut into pieces, and nothing else is taken for one."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dispatcher.doors.tools.call_parser import MOST_HEAD_CHARACTERS, ToolCallParser
from services.dispatcher.doors.tools.formats import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, ToolFormat

A = {"name": "look_up", "arguments": {"bird": 'a "dun\\lin" {🦜}', "deep": [{"x": "}"}]}}
B = {"name": "count", "arguments": {}}


def hermes(*calls: dict[str, Any]) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def mistral(*calls: dict[str, Any]) -> str:
    return f"[TOOL_CALLS] {json.dumps(calls)}"


def mistral_args(*calls: dict[str, Any]) -> str:
    return "".join(f"[TOOL_CALLS]{call['name']}[ARGS]{json.dumps(call['arguments'])}" for call in calls)


def mistral_args_with_ids(*calls: dict[str, Any]) -> str:
    return mistral_args(*calls).replace("[ARGS]", "[CALL_ID]a1B2c3D4e[ARGS]")


def llama3(*calls: dict[str, Any]) -> str:
    return "; ".join(json.dumps({"name": call["name"], "parameters": call["arguments"]}) for call in calls)


WRITTEN = ((HERMES, hermes), (MISTRAL, mistral), (LLAMA3, llama3))
NAMED = ((MISTRAL_ARGS, mistral_args), (MISTRAL_ARGS, mistral_args_with_ids))


def parsed(
    kind: ToolFormat, pieces: list[str], most: int | None = None
) -> tuple[str, list[tuple[str, Any]], list[str]]:
    """The content, the calls, and their ids."""
    parser, content, names, arguments, ids = (
        ToolCallParser(kind, "req-1-1", most),
        "",
        list[str](),
        list[str](),
        list[str](),
    )
    for index, piece in enumerate(pieces):
        added = parser.read(piece, index == len(pieces) - 1)
        content += added.content
        for call in added.calls or ():
            if call.id:
                assert call.index == len(names)
                names.append(call.name)
                ids.append(call.id)
                arguments.append("")
            arguments[call.index] += call.arguments
    assert parser.calls >= len(names)
    return content, [(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)], ids


def cut(text: str, places: list[int]) -> list[str]:
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(at)]


@given(
    st.sampled_from(WRITTEN + NAMED),
    st.lists(st.integers(0, 500), max_size=12),
    st.sampled_from([(A,), (B,), (A, B, A)]),
)
def test_calls_are_found_however_the_text_is_cut(written: Any, places: list[int], calls: Any) -> None:
    kind, write = written
    content, found, ids = parsed(kind, cut(write(*calls), places))
    assert found == [(call["name"], call["arguments"]) for call in calls]
    assert not content.strip()
    assert len({*ids}) == len(calls)
    assert ids == parsed(kind, [write(*calls)])[2], "sent again they are the same"


@given(st.lists(st.integers(0, 500), max_size=12))
def test_content_before_and_between_is_kept(places: list[int]) -> None:
    text = f"Let me see <tool.\n{hermes(A)}\nand then\n{hermes(B)}"
    content, found, _ = parsed(HERMES, cut(text, places))
    assert [name for name, _ in found] == ["look_up", "count"]
    assert content.split() == ["Let", "me", "see", "<tool.", "and", "then"]


@pytest.mark.parametrize("kind", [HERMES, MISTRAL, MISTRAL_ARGS, LLAMA3])
@given(
    places=st.lists(st.integers(0, 500), max_size=6), text=st.sampled_from(["", "A < b, [TOOL", "  x {}", "<tool_cal"])
)
def test_text_without_a_call_is_content(kind: ToolFormat, places: list[int], text: str) -> None:
    assert parsed(kind, cut(text, places)) == (text, [], [])


@given(
    st.lists(st.integers(0, 500), max_size=12),
    st.sampled_from([(MISTRAL, mistral), *NAMED]),
    st.sampled_from([" Then I tell you.", "\n[x] [TOOL", " f[ARGS]{}"]),
)
def test_plain_text_after_mistrals_calls_is_content_and_so_is_that_before(
    places: list[int], written: Any, after: str
) -> None:
    kind, write = written
    content, found, _ = parsed(kind, cut(f"I look. {write(A)}{write(B, A)}{after}", places))
    assert [name for name, _ in found] == ["look_up", "count", "look_up"]
    assert content.startswith("I look. ")
    assert "".join(content.removeprefix("I look. ").split()).strip("[]") == "".join(after.split()).strip("[]")


def test_arguments_after_a_bare_name_come_piece_by_piece() -> None:
    parser = ToolCallParser(MISTRAL_ARGS, "req-1-1")
    assert parser.push("[TOOL_CALLS]f[ARG").calls is None
    first = parser.push('S]{"a"')
    assert [(call.name, call.arguments) for call in first.calls or ()] == [("f", ""), ("", '{"a"')]
    assert [call.arguments for call in parser.push(": 1}[TOOL_").calls or ()] == [": 1}"]
    assert parser.read("x", True).content == "[TOOL_x"


def test_arguments_come_piece_by_piece() -> None:
    parser = ToolCallParser(HERMES, "req-1-1")
    first = parser.push('<tool_call>\n{"name": "f", "arguments": {"a"')
    assert [(call.name, call.arguments) for call in first.calls or ()] == [("f", ""), ("", '{"a"')]
    assert [call.arguments for call in parser.push(": 1").calls or ()] == [": 1"]
    assert [call.arguments for call in parser.push("}}\n</tool").calls or ()] == ["}"]
    assert parser.read("_call>", True).content == ""


def test_another_order_is_a_call_and_another_object_is_not() -> None:
    swapped = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'
    assert parsed(HERMES, [swapped])[:2] == ("", [("f", {"a": 1})])
    for text in ('{"answer": 1}', '{"name": "f"}', '{"name": 1, "parameters": {}}', '{"name": "x'):
        assert parsed(LLAMA3, [text])[:2] == (text, [])
    assert parsed(HERMES, ["<tool_call>{nonsense}</tool_call> x"])[0].startswith("<tool_call>{nonsense}")


@pytest.mark.parametrize(("kind", "write"), WRITTEN)
def test_calls_beyond_the_most_are_left_out(kind: ToolFormat, write: Any) -> None:
    content, found, _ = parsed(kind, cut(write(A, B, A), [5, 60, 130]), 1)
    assert [name for name, _ in found] == ["look_up"]
    assert not content.strip()


def test_ids_have_the_length_that_templates_demand() -> None:
    assert len(parsed(MISTRAL, [mistral(A)])[2][0]) == 9
    assert parsed(HERMES, [hermes(A)])[2][0].startswith("call_")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LLAMA3, '{"a": 1}, {"b": 2}\n\nThat is all; [see]'),
        (LLAMA3, ' {"a": 1}\n'),
        (HERMES, "I use <tool_call> marks, [x], for calls."),
        (HERMES, "<tool_call>\n{nonsense}\n</tool_call> x"),
        (HERMES, "<tool_call>\n<tool"),
        (MISTRAL, '[TOOL_CALLS] [{"a": 1}, x'),
        (HERMES, '<tool_call>{"name": "a\\_b", "argument'),
        (HERMES, '<tool_call>{"name": "a\\_b", "arguments": {"c": 1}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "\\ud83d", "arguments": {"c": 1}}</tool_call>'),
        (HERMES, '<tool_call>{"arguments": {"c": "\\ud83d"}, "name": "f"}</tool_call>'),
        (HERMES, '<tool_call>{"arguments": {"c": NaN}, "name": "f"}</tool_call>'),
        (MISTRAL_ARGS, "[TOOL_CALLS] [TOOL_CALLS]f(x) [ARGS]{}"),
        (MISTRAL_ARGS, "[TOOL_CALLS]f[ARGS]"),
        (MISTRAL_ARGS, "[TOOL_CALLS]f[CALL_ID]"),
        (MISTRAL_ARGS, '[TOOL_CALLS]f[ARGS] x {"a": 1}'),
        (MISTRAL_ARGS, '[TOOL_CALLS] [{"name": "f", "arguments": {}}]'),
        (MISTRAL_ARGS, f"[TOOL_CALLS]{'f' * 65}[ARGS]{{}}"),
        (HERMES, f'<tool_call>{{"a": {"[" * 200_000}{"]" * 200_000}}}'),
    ],
)
def test_what_turns_out_to_be_no_call_is_content_as_it_is(kind: ToolFormat, text: str) -> None:
    assert parsed(kind, [text]) == (text, [], [])
    assert parsed(kind, cut(text, [1, 3, 12, 20, 31])) == (text, [], [])


def test_nothing_but_separators_is_left_out_around_calls() -> None:
    content, found, _ = parsed(HERMES, [f"{hermes(A)}\n<tool_call>\nno call\n</tool_call>\n{hermes(B)}\n"])
    assert [name for name, _ in found] == ["look_up", "count"]
    assert content.split() == ["<tool_call>", "no", "call", "</tool_call>"]


@pytest.mark.parametrize(("kind", "written"), WRITTEN)
@given(places=st.lists(st.integers(0, 10_000), max_size=6))
def test_a_call_with_a_long_name_comes_whole_however_it_is_cut(
    kind: ToolFormat, written: Any, places: list[int]
) -> None:
    call = {"name": "x" * MOST_HEAD_CHARACTERS, "arguments": {"a": 1}}
    content, calls, _ = parsed(kind, cut(written(call), places))
    assert (content, calls) == ("", [(call["name"], call["arguments"])])


def test_a_name_that_never_ends_is_not_read_again_and_again() -> None:
    """A client can have a model write one: each token cost as much as all before it, on the doors' event loop."""
    parser, seen = ToolCallParser(LLAMA3, "req-1-1"), list[int]()

    class Counting:
        def match(self, text: str) -> None:
            seen.append(len(text))

    parser._head = Counting()  # type: ignore[assignment]
    parser.push('{"name": "')
    for _ in range(2 * MOST_HEAD_CHARACTERS):
        parser.push("x")
    assert max(seen) == MOST_HEAD_CHARACTERS
