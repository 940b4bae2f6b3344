"""What the kernel says of a process that lowered its priority."""

import os
import subprocess
import sys

from dunlin.runtime.priority import AUTOGROUP

PROGRAM = """
import os
from dunlin.runtime.priority import AUTOGROUP, lower_priority

lower_priority(7)
print(os.getpriority(os.PRIO_PROCESS, 0), AUTOGROUP.read_text() if AUTOGROUP.exists() else "")
"""


def test_the_process_and_its_session_give_way() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, start_new_session=True
    )
    nice, *autogroup = ran.stdout.split()
    wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)
    assert int(nice) == wanted
    if AUTOGROUP.exists():
        assert autogroup[1:] == ["nice", str(wanted)]
