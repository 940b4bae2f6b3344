"""`dunlin chat`: turns, commands, what is kept of an answer that was stopped."""

from collections.abc import Generator
from typing import Any

import pytest

from cli.commands.requests.chat import ChatHistory, chat_lines
from cli.common.errors import CliError
from dunlin.client import DunlinError
from dunlin.messages.public import GenerateEvent
from dunlin.messages.types import i32


class FakeClient:
    """Answers "<n> turns"; the word `fail` or `stop` in a turn ends the answer so."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        self.options: list[dict[str, Any]] = []
        self.closed = 0

    def stream(self, *, messages: list[tuple[str, str]], **options: Any) -> Generator[GenerateEvent, None, None]:
        self.asked.append(messages)
        self.options.append(options)
        try:
            yield GenerateEvent("req-1-1")
            if "stop" in messages[-1][1]:
                raise KeyboardInterrupt
            if "fail" in messages[-1][1]:
                raise DunlinError("no instance could serve")
            yield GenerateEvent("req-1-1", f"{len(messages)} ")
            yield GenerateEvent("req-1-1", "turns")
            while "on and on" in messages[-1][1]:
                yield GenerateEvent("req-1-1", " more", i32([1] * 100))
        finally:
            self.closed += 1


def talk(*lines: str, keep_on: bool = True, system: str = "") -> FakeClient:
    client = FakeClient()
    made: Any = client
    assert chat_lines(made, ChatHistory(system), {"max_tokens": 5}, iter(lines), keep_on) == 0
    return client


def test_a_conversation_carries_its_turns(capsys: pytest.CaptureFixture[str]) -> None:
    client = talk("Hello\n", "\n", "Again\n", system="Be short.")
    assert client.asked == [
        [("system", "Be short."), ("user", "Hello")],
        [("system", "Be short."), ("user", "Hello"), ("assistant", "2 turns"), ("user", "Again")],
    ]
    assert client.options == [{"max_tokens": 5}] * 2
    assert capsys.readouterr().out == "2 turns\n4 turns\n"
    assert client.closed == 2


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    client = talk("one", "/reset", "two", "/system  Sing. ", "three", "/system", "four", "/nonsense", "/exit", "never")
    assert client.asked == [
        [("user", "one")],
        [("user", "two")],
        [("system", "Sing."), ("user", "three")],
        [("user", "four")],
    ]
    said = capsys.readouterr()
    assert "no such command: /nonsense" in said.err
    assert said.out == "1 turns\n1 turns\n2 turns\n1 turns\n"


@pytest.mark.parametrize("turn", ["stop", "fail"])
def test_an_answer_that_was_stopped_is_not_kept_and_ends_nothing(turn: str) -> None:
    client = talk(turn, "go on")
    assert client.asked == [[("user", turn)], [("user", "go on")]]
    assert client.closed == 2


def test_an_answer_without_a_limit_is_stopped_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = FakeClient()
    assert chat_lines(client, ChatHistory(), {"max_tokens": None}, iter(["on and on", "next"]), keep_on=False) == 0
    assert client.asked[1][1] == ("assistant", "1 turns" + " more" * 6)
    assert client.closed == 2
    assert "stopped after 600 tokens; --max-tokens N" in capsys.readouterr().err


def test_out_of_a_pipe_a_failure_is_the_end() -> None:
    client: Any = FakeClient()
    with pytest.raises(CliError, match="no instance could serve"):
        chat_lines(client, ChatHistory(), {"max_tokens": None}, iter(["fail", "never"]), keep_on=False)
    assert len(client.asked) == 1
