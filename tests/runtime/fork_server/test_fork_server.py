"""Processes forked from a server: whose children they are, what they inherit, and what ends with what."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.processes import gone
from dunlin.runtime.fork_server.client import ForkServer
from dunlin.runtime.fork_server.forked_process import ForkedProcess
from dunlin.runtime.fork_server.request import ForkError
from dunlin.runtime.procfs import command_line

PROGRAM = """
import json, os, signal, sys
with open(sys.argv[1] + ".new", "w") as file:
    json.dump({
        "argv": sys.argv[1:],
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "folder": os.getcwd(),
        "hello": os.environ.get("HELLO"),
        "server's": os.environ.get("ITS_OWN"),
        "colour": "colorsys" in sys.modules,
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    }, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("said", flush=True)
{then}
"""
SLEEP = "import time; time.sleep(600)"
TIMEOUT_S = 300.0


class Bench:
    """A fork server that has imported `colorsys`, and programs to run by it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "2",
            "PYTHONPATH": os.pathsep.join((str(folder), str(Path.cwd()))),
            "HELLO": "you",
        }
        modules = ["colorsys", "numpy", "no_such_module", "pack.__main__"]
        (folder / "pack").mkdir()
        (folder / "pack/__init__.py").touch()
        (folder / "pack/__main__.py").write_text("print(__name__, flush=True)")
        self.server = ForkServer(modules, {**self.environment, "ITS_OWN": "1"})
        self.started: list[ForkedProcess] = []

    def start(self, then: str, *arguments: str, **options: Any) -> ForkedProcess:
        """A process that says what it is in the file `said`, then does as told."""
        (self.folder / "program.py").write_text(PROGRAM.replace("{then}", then))
        (self.folder / "said").unlink(missing_ok=True)
        command = [sys.executable, "-m", "program", str(self.folder / "said"), *arguments]
        self.started.append(self.server.spawn(command, self.environment, **options))
        return self.started[-1]

    def said(self) -> dict[str, Any]:
        until((self.folder / "said").exists)
        found: dict[str, Any] = json.loads((self.folder / "said").read_text())
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.server.close()
    for process in made.started:
        process.kill()
        process.wait()


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def server_pid() -> int:
    """Of the fork server that the bench started: a program that is just starting has no words yet."""
    until(lambda: bool(_servers()))
    (found,) = _servers()
    return found


def _servers() -> list[int]:
    return [pid for pid in children(os.getpid()) if "colorsys" in command_line(pid)]


def test_it_is_a_child_with_the_words_folder_and_environment_it_was_given(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = bench.start(SLEEP, "--a", "b c")
    said = bench.said()
    assert said["argv"][1:] == ["--a", "b c"]
    assert (said["parent"], said["folder"], said["hello"]) == (os.getpid(), str(tmp_path), "you")
    assert said["server's"] is None
    assert children(server_pid()) == []
    assert (said["colour"], said["interrupt"]) == (True, True)
    assert said["group"] != process.pid
    assert "-m program" in command_line(process.pid)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM == process.returncode


def test_the_server_has_one_thread(bench: Bench) -> None:
    until(bench.server.is_ready)
    assert len(os.listdir(f"/proc/{server_pid()}/task")) == 1


def test_the_next_one_has_nothing_of_the_one_before(bench: Bench) -> None:
    bench.start("os.environ['HELLO'] = 'me'; sys.exit(7)")
    assert bench.started[0].wait() == 7
    bench.start("", own_group=True)
    assert bench.started[1].wait() == 0
    assert (bench.said()["hello"], bench.said()["group"]) == ("you", bench.started[1].pid)


def test_descriptors_come_under_their_numbers_and_no_others(bench: Bench) -> None:
    """Also under the number that the connection has in the server, and exchanged with each other."""
    words = command_line(server_pid()).split()
    number = int(words[words.index("--connection-fd") + 1])
    pipes = [os.pipe(), os.pipe()]
    taken = {fd for pipe in pipes for fd in pipe}
    fds = [pipes[0][1], pipes[1][1]]
    if number not in taken:
        fds.append(os.dup2(pipes[0][1], number))
    process = bench.start("[os.write(int(fd), fd.encode()) for fd in sys.argv[2:]]", *map(str, fds), fds=fds)
    for fd in fds:
        os.close(fd)
    assert process.wait() == 0
    assert os.read(pipes[0][0], 99).decode() == "".join(map(str, (fds[0], *fds[2:])))
    assert os.read(pipes[1][0], 99).decode() == str(fds[1])
    for pipe in pipes:
        os.close(pipe[0])
    own = 2  # the file that it writes to, and the list that it reads
    found = bench.said()["fds"]
    assert len(found) == 3 + len(fds) + own
    assert {0, 1, 2, *fds} < set(found)


def test_its_output_goes_where_it_is_told(bench: Bench, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = bench.start("print('wrong', file=sys.stderr); input()", output=log.fileno())
        assert process.wait() == 1  # nothing to read
    assert (tmp_path / "log").read_text().startswith("said\nwrong\nTraceback")


def test_what_was_imported_in_advance_runs_as_the_main_module(bench: Bench, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "pack"]
        assert bench.server.spawn(command, bench.environment, output=log.fileno()).wait() == 0
    assert (tmp_path / "log").read_text() == "__main__\n"


def test_a_server_keeps_no_descriptor_of_a_process(bench: Bench) -> None:
    """Nor does the one that the process has for itself: who reads a pipe hears that it was closed."""
    bench.start("").wait()
    before = os.listdir(f"/proc/{server_pid()}/fd")
    reading, writing = os.pipe()
    bench.start(f"os.close({writing}); {SLEEP}", fds=[writing], server_fd=99)
    os.close(writing)
    assert os.read(reading, 9) == b""
    os.close(reading)
    assert os.listdir(f"/proc/{server_pid()}/fd") == before


def test_it_outlives_the_server_and_the_next_has_another(bench: Bench) -> None:
    first = bench.start(SLEEP)
    bench.said()
    before = server_pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: gone(before))
    assert first.poll() is None
    assert bench.start("").wait() == 0
    assert bench.said()["parent"] == os.getpid()
    assert server_pid() != before
    assert first.poll() is None


def test_one_that_has_a_server_of_its_own_starts_processes_by_it(bench: Bench) -> None:
    """What that server starts is tied to nobody but the process that asked."""
    (bench.folder / "child.py").write_text("import os, sys; print(os.getppid(), 'colorsys' in sys.modules, flush=True)")
    then = """
from dunlin.runtime.fork_server.client import ForkServer
server = ForkServer(["no_such_module"], os.environ, connection_fd=7)
reading, writing = os.pipe()
child = server.spawn([sys.executable, "-m", "child"], os.environ, output=writing)
code = child.wait()
with open(sys.argv[1] + ".child", "w") as file:
    file.write(f"{code} {os.getpid()} {os.read(reading, 99).decode()}")
server.close()
"""
    process = bench.start(then, server_fd=7)
    assert process.wait() == 0
    code, own, parent, has_colour = (bench.folder / "said.child").read_text().split()
    assert (code, own, parent, has_colour) == ("0", str(process.pid), str(process.pid), "True")


def test_the_server_of_a_killed_process_ends_with_it(bench: Bench) -> None:
    process = bench.start(SLEEP, server_fd=7)
    bench.said()
    (own,) = children(process.pid)
    process.kill()
    process.wait()
    until(lambda: gone(own))
    assert not gone(server_pid())


def test_a_server_whose_process_ends_without_a_request_says_nothing(bench: Bench, tmp_path: Path) -> None:
    """Its words would be the last in the log, where the reason stands why the process cannot start."""
    with (tmp_path / "log").open("wb") as log:
        process = bench.start("os.close(7)", output=log.fileno(), server_fd=7)
        (own,) = children(process.pid) or (0,)
        assert process.wait() == 0
    until(lambda: not own or gone(own))
    assert (tmp_path / "log").read_text() == "said\n"


def test_what_cannot_be_started_is_said_and_the_next_starts(bench: Bench) -> None:
    """The server's limit of descriptors is below the number that one is to have."""
    bench.start("").wait()
    limits = resource.prlimit(server_pid(), resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    number = fcntl.fcntl(0, fcntl.F_DUPFD, 99)  # a free one: threads of other tests open descriptors meanwhile
    with pytest.raises(ForkError, match=r"cannot start program: .*Invalid argument"):
        bench.start("", fds=[number])
    os.close(number)
    resource.prlimit(server_pid(), resource.RLIMIT_NOFILE, limits)
    assert bench.start("").wait() == 0


def test_waiting_has_a_limit(bench: Bench) -> None:
    """Also in a process with many descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    many = [os.dup(0) for _ in range(1100)]
    process = bench.start(SLEEP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    for fd in many:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    process.kill()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    process.kill()  # nothing: the number may be another's by now
