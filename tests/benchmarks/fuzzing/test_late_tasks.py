"""The plugin under which tasks wake late."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fuzzing.late_tasks import late_tasks

ROOT = Path(__file__).resolve().parents[3]
TURNS = 20
USUAL = asyncio.Handle._run


def order(share: float) -> tuple[list[str], int]:
    """What a woken task and the turns of the loop wrote, and how many wake-ups were late."""
    written: list[str] = []

    async def waiter(woken: asyncio.Future[None]) -> None:
        await woken
        written.append("woken")

    async def scenario() -> None:
        woken = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(waiter(woken))
        await asyncio.sleep(0)
        woken.set_result(None)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        written.append("turns")
        await task

    with late_tasks(seed=1, share=share, most_s=0.05) as tasks:
        asyncio.run(scenario())
    return written, tasks.late


def test_wake_ups_come_late_by_their_share_and_none_is_lost() -> None:
    assert order(0.0) == (["woken", "turns"], 0)
    written, late = order(1.0)
    assert written == ["turns", "woken"]
    assert late >= 1


def test_afterwards_loops_are_as_before() -> None:
    with late_tasks(seed=1, share=1.0, most_s=0.05):
        assert asyncio.Handle._run is not USUAL
    assert asyncio.Handle._run is USUAL


HASTY = """
import asyncio

def test_hasty():
    async def scenario():
        loop = asyncio.get_running_loop()
        woken, written = loop.create_future(), []
        async def waiter():
            await woken
            written.append(1)
        task = asyncio.create_task(waiter())
        await asyncio.sleep(0)
        woken.set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert written == [1]
        await task
    asyncio.run(scenario())
"""


@pytest.mark.parametrize(("share", "code"), [("0", pytest.ExitCode.OK), ("1", pytest.ExitCode.TESTS_FAILED)])
def test_pytest_takes_it_as_a_plugin(tmp_path: Path, share: str, code: pytest.ExitCode) -> None:
    test = tmp_path / "test_hasty.py"
    test.write_text(HASTY)
    plugin = ["-p", "no:cacheprovider", "-p", "benchmarks.fuzzing.late_tasks", "--late-share", share]
    command = [sys.executable, "-m", "pytest", *plugin, f"--rootdir={tmp_path}", "-c", "/dev/null", str(test)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == code
