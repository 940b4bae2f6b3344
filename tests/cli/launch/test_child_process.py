"""One child: its group and its session."""

import os
import sys
import time
from pathlib import Path

from cli.launch.child_process import ChildProcess

PROGRAM = "import os; print(os.getpid(), os.getpgid(0), os.getsid(0), flush=True)"


def test_a_child_leads_a_group_of_the_supervisors_session(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = ChildProcess([sys.executable, "-S", "-c", PROGRAM], log, os.environ)
    while not child.exited():
        time.sleep(0.01)
    assert log.read_text().split() == [str(child.pid), str(child.pid), str(os.getsid(0))]
    assert (child.code, child.exit_description) == (0, "exit code 0")
