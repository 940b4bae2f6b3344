"""Keeps processes running: starts them, starts the dead ones again, and at the end leaves none behind.

A stopped process (SIGSTOP) is not a dead one: it is left alone until the shutdown. Knows no service by name.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from cli.launch.child_process import ChildProcess, last_line
from cli.launch.cluster_state import DataDirLock
from cli.launch.errors import LaunchError
from cli.launch.process_specs import ProcessSpec
from cli.launch.restart_policy import RestartHistory, RestartPolicy
from dunlin.runtime.child_exit import RunningProcess

CANNOT_START = 2
"""The exit code with which a process says: starting me again will not help."""
_POLL_S = 0.05

StatusPrinter = Callable[[str], None]
StartProcess = Callable[[ProcessSpec, int], RunningProcess]
"""Starts a process that writes to the given descriptor and leads a process group. Raises OSError."""


class SupervisedProcess:
    """One process that is to run all the time, across its restarts."""

    def __init__(self, spec: ProcessSpec, data_dir: DataDirLock, start: StartProcess, policy: RestartPolicy) -> None:
        self.spec = spec
        self.log = data_dir.log(spec.name)
        self.child: ChildProcess | None = None
        self.restarts = RestartHistory(policy)
        self.given_up = False
        self._start = start
        self._started_s = 0.0
        self._due_s: float | None = None

    def start(self, now_s: float) -> None:
        """Start it. Raises LaunchError when the program itself cannot be run."""
        self._started_s, self._due_s = now_s, None
        try:
            self.child = ChildProcess(partial(self._start, self.spec), self.log)
        except OSError as error:
            said = error.strerror or error
            raise LaunchError(f"{self.spec.name}: cannot run {self.spec.command[0]}: {said}") from None

    def tick(self, now_s: float, say: StatusPrinter) -> None:
        """Notice a death; start again when it is time."""
        if self._due_s is not None:
            if now_s >= self._due_s:
                self._start_again(now_s, say)
        elif not self.given_up and self.child is not None and self.child.exited():
            words = f"{self.spec.name} (pid {self.child.pid}) ended with {self.child.exit_description}"
            self._on_exit(words, now_s, say, self.child.was_killed)

    def _start_again(self, now_s: float, say: StatusPrinter) -> None:
        try:
            self.start(now_s)
        except LaunchError as error:  # no memory or process to be had just now: as good as dead at once
            self._on_exit(str(error), now_s, say)
            return
        say(f"{self.spec.name} started again (pid {self.child.pid if self.child else 0})")

    def _on_exit(self, words: str, now_s: float, say: StatusPrinter, killed: bool = False) -> None:
        delay_s = self.restarts.died(now_s - self._started_s, killed)
        said = last_line(self.log)
        if delay_s is None:
            self.given_up = True
            say(f"{words}; it died too often and stays down; its last words: {said}; see {self.log}")
            return
        self._due_s = now_s + delay_s
        say(f"{words}; starting it again{f' in {delay_s:g} s' if delay_s else ''}")

    def cannot_start(self) -> bool:
        """Whether it said that starting it again is of no use."""
        return self.child is not None and self.child.exited() and self.child.code == CANNOT_START


class Supervisor:
    """Owns the processes of one cluster. Used from one thread, the one that the children are tied to."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        data_dir: DataDirLock,
        start: StartProcess,
        policy: RestartPolicy,
        say: StatusPrinter,
    ) -> None:
        self.managed = [SupervisedProcess(spec, data_dir, start, policy) for spec in specs]
        self._say = say

    def start(self) -> None:
        """Start every process once. Raises LaunchError; what runs by then is ended by `stop`."""
        for managed in self.managed:
            managed.start(time.monotonic())

    def tick(self) -> None:
        """One look at every process."""
        for managed in self.managed:
            managed.tick(time.monotonic(), self._say)

    def check_start(self) -> None:
        """Raises LaunchError, with the process's own words, for one that cannot start or died too often."""
        for managed in self.managed:
            if managed.cannot_start() or managed.given_up:
                raise LaunchError(f"{managed.spec.name} cannot start: {last_line(managed.log)} (log: {managed.log})")

    def stop(self, grace_s: float, impatient: Callable[[], bool] = lambda: False) -> None:
        """End all: ask, wait at most `grace_s` or until `impatient`, kill what is left with everything it started."""
        children = [managed.child for managed in self.managed if managed.child is not None]
        for child in children:
            if child.stopped():
                child.kill()
            child.terminate()
        self._await(children, grace_s, impatient)
        for child in children:
            child.kill()
        self._await(children, grace_s, lambda: False)

    @staticmethod
    def _await(children: Sequence[ChildProcess], limit_s: float, impatient: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + limit_s
        left = list(children)
        while left and time.monotonic() < deadline_s and not impatient():
            left = [child for child in left if not child.exited()]
            time.sleep(_POLL_S if left else 0)
