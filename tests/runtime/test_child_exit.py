"""A child's end is noticed, whenever it comes, on any event loop."""

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest
import uvloop

from dunlin.runtime.child_exit import wait_for_exit


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_the_exit_code_comes_when_the_child_ends(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(7)"], stdin=subprocess.PIPE)

    async def wait() -> int:
        waiting = asyncio.ensure_future(wait_for_exit(child))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert child.stdin is not None
        child.stdin.close()
        return await waiting

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(wait()) == 1  # EOFError
        assert runner.run(wait_for_exit(child)) == 1, "and at once when it has ended before"


def test_a_killed_child_says_so() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.kill()
    assert asyncio.run(wait_for_exit(child)) == -9
