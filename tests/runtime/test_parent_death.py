import os
import subprocess
import sys
import time
from pathlib import Path

from dunlin.runtime.parent_death import die_with_parent_command

PARENT = """
import subprocess, sys, time
from dunlin.runtime.parent_death import die_with_parent_command
import os
child = subprocess.Popen(die_with_parent_command(["sleep", "60"], os.getpid()))
print(child.pid, flush=True)
time.sleep(60)
"""


def _command_of(pid: int) -> str:
    """The name of the program that runs under the pid; empty when it ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return ""
    name, state = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2]
    return "" if state == "Z" else name


def _until_command_is(pid: int, wanted: str) -> None:
    deadline_s = time.monotonic() + 300
    while _command_of(pid) != wanted:
        assert time.monotonic() < deadline_s, _command_of(pid)
        time.sleep(0.01)


def test_the_command_runs_under_the_same_pid_and_dies_with_its_parent(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        _until_command_is(pid, "sleep")
        parent.kill()
        parent.wait()
    _until_command_is(pid, "")


def test_arguments_exit_code_and_output_pass_through() -> None:
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b", "--", "$HOME"]
    ran = subprocess.run(die_with_parent_command(command, os.getpid()), capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (7, "['a b', '--', '$HOME']\n")


def test_an_orphan_does_not_start() -> None:
    ran = subprocess.run(die_with_parent_command(["echo", "started"], 1 << 22), capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"started by process {1 << 22}, but the parent is {os.getpid()}; not starting echo" in ran.stderr


def test_a_missing_command_and_a_wrong_usage_are_told(root: Path) -> None:
    ran = subprocess.run(die_with_parent_command(["/no/such/command"], os.getpid()), capture_output=True, text=True)
    assert ran.returncode == 127
    assert "cannot run /no/such/command" in ran.stderr
    for arguments in ([], ["x", "--", "true"], ["12", "true"], ["12", "--"]):
        ran = subprocess.run(
            [sys.executable, "-m", "dunlin.runtime.parent_death", *arguments], cwd=root, capture_output=True, text=True
        )
        assert ran.returncode == 2
        assert ran.stderr.startswith("usage: ")
