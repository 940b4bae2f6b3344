"""Processes started, restarted, left alone when stopped, and none left behind: with small real processes."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cli.launch.child_process import ChildProcess, last_line
from cli.launch.cluster_state import DataDirLock
from cli.launch.errors import LaunchError
from cli.launch.process_specs import ProcessSpec
from cli.launch.process_starter import start_program
from cli.launch.restart_policy import RestartPolicy
from cli.launch.supervisor import Supervisor

START = partial(start_program, environment=os.environ)
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
POLITE = (  # each line in one write: unbuffered, print() writes word and newline apart, and SIGTERM comes between them
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), sys.exit(0)))\n"
    "os.write(1, b'up\\n')\n"
    "time.sleep(600)"
)
PARENT = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid, flush=True); {SLEEP}"


def spec(code: str, name: str = "p") -> ProcessSpec:
    return ProcessSpec(name, "test", (sys.executable, "-c", code))


def until(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process is no more, or only waits for a parent that is not ours to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Bench:
    """A supervisor under test, its words, and a guarantee that nothing survives the test."""

    def __init__(self, path: Path) -> None:
        self.dir = DataDirLock(path)
        self.said: list[str] = []
        self.supervisors: list[Supervisor] = []

    def supervise(self, *codes: str, **policy: float) -> Supervisor:
        specs = [spec(code, f"p{i}") for i, code in enumerate(codes)]
        made = Supervisor(specs, self.dir, START, RestartPolicy(**policy), self.said.append)  # type: ignore[arg-type]
        self.supervisors.append(made)
        made.start()
        return made

    def log(self, name: str) -> str:
        return last_line(self.dir.log(name))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for supervisor in made.supervisors:
        supervisor.stop(0)
    made.dir.close()


def child(supervisor: Supervisor, index: int = 0) -> ChildProcess:
    found = supervisor.managed[index].child
    assert found is not None
    return found


def ticked(supervisor: Supervisor) -> bool:
    supervisor.tick()
    return True


def test_a_dead_process_is_started_again(bench: Bench) -> None:
    supervisor = bench.supervise(SLEEP, first_delay_s=0.01)
    before = child(supervisor).pid
    os.kill(before, signal.SIGKILL)
    until(lambda: ticked(supervisor) and child(supervisor).pid != before)
    assert not child(supervisor).exited()
    assert "ended with signal SIGKILL; starting it again in 0.01 s" in bench.said[0]


def test_one_that_dies_too_often_stays_down_with_its_last_words(bench: Bench) -> None:
    supervisor = bench.supervise("print('no luck'); raise SystemExit(1)", first_delay_s=0.01, limit=2)
    until(lambda: ticked(supervisor) and supervisor.managed[0].given_up)
    assert supervisor.managed[0].restarts.total == 3
    assert "its last words: no luck" in bench.said[-1]
    with pytest.raises(LaunchError, match="p0 cannot start: no luck"):
        supervisor.check_start()


def test_exit_code_2_says_that_a_start_is_hopeless(bench: Bench) -> None:
    supervisor = bench.supervise("print('bad model'); raise SystemExit(2)", first_delay_s=60)
    until(lambda: ticked(supervisor) and child(supervisor).code is not None)
    with pytest.raises(LaunchError, match="p0 cannot start: bad model"):
        supervisor.check_start()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    held = DataDirLock(tmp_path)
    missing = Supervisor([ProcessSpec("x", "test", ("/no/such",))], held, START, RestartPolicy(), print)
    with pytest.raises(LaunchError, match="x: cannot run /no/such"):
        missing.start()
    held.close()


def test_a_stopped_process_is_left_alone_until_the_end(bench: Bench) -> None:
    supervisor = bench.supervise(SLEEP)
    pid = child(supervisor).pid
    os.kill(pid, signal.SIGSTOP)
    until(child(supervisor).stopped)
    for _ in range(5):
        supervisor.tick()
    assert not child(supervisor).exited()
    supervisor.stop(5)
    assert gone(pid)


def test_stop_asks_first(bench: Bench) -> None:
    supervisor = bench.supervise(POLITE)
    until(lambda: bench.log("p0") == "up")
    supervisor.stop(300)
    assert bench.log("p0") == "bye"
    assert child(supervisor).code == 0


def test_stop_kills_who_does_not_listen(bench: Bench) -> None:
    supervisor = bench.supervise(DEAF)
    until(lambda: bench.log("p0") == "deaf")
    supervisor.stop(0.2)
    assert child(supervisor).code == -signal.SIGKILL


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_child_started_ends_with_it(bench: Bench, end: signal.Signals) -> None:
    supervisor = bench.supervise(PARENT)
    until(lambda: bench.log("p0").isdecimal())
    grandchild = int(bench.log("p0"))
    os.kill(child(supervisor).pid, end)
    until(lambda: child(supervisor).exited())
    until(lambda: gone(grandchild))


def test_a_stopped_grandchild_ends_too(bench: Bench) -> None:
    supervisor = bench.supervise(PARENT)
    until(lambda: bench.log("p0").isdecimal())
    grandchild = int(bench.log("p0"))
    os.kill(grandchild, signal.SIGSTOP)
    supervisor.stop(5)
    until(lambda: gone(grandchild))


def test_the_last_line_of_a_log_skips_blank_ones(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\n" * 5000 + "two\n\n  \n")
    assert last_line(tmp_path / "log") == "two"
    assert last_line(tmp_path / "none") == ""
