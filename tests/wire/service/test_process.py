"""A service's process: its exit code, its one line when it cannot start, its log."""

import asyncio
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from dunlin.runtime.parent_death import ParentGone
from dunlin.wire.errors import StartError
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.process import run_service

OPTIONS = ServiceOptions("instance", "late", ("127.0.0.1:1",))


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


async def served() -> int:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    return 7


def test_the_exit_code_is_that_of_main() -> None:
    assert run_service(OPTIONS, served) == 7


@pytest.mark.parametrize("error", [StartError("cannot listen on h:1"), ParentGone("the parent is gone")])
def test_what_cannot_start_says_one_line_and_exits_with_2(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    async def failing() -> int:
        raise error

    assert run_service(OPTIONS, failing) == 2
    assert capsys.readouterr().err == f"dunlin instance/late: {error}\n"


def test_ctrl_c_exits_as_a_shell_expects() -> None:
    async def interrupted() -> int:
        raise KeyboardInterrupt

    assert run_service(OPTIONS, interrupted) == 130


def test_a_mistake_is_not_taken_for_a_start_that_failed() -> None:
    async def failing() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_service(OPTIONS, failing)


def test_the_first_line_of_the_log_says_what_the_service_is(capsys: pytest.CaptureFixture[str]) -> None:
    run_service(OPTIONS, served, about="an instance of tiny")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("instance/late INFO an instance of tiny")


def test_a_process_with_a_parent_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tied: list[int] = []
    monkeypatch.setattr("dunlin.wire.service.process.die_with_parent", tied.append)
    changes: dict[str, Any] = {"parent_pid": os.getppid()}
    assert run_service(ServiceOptions("instance", "late", ("127.0.0.1:1",), **changes), served) == 7
    assert run_service(OPTIONS, served) == 7
    assert tied == [os.getppid()]
