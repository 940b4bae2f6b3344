"""One mutant in a forked child of a pytest session that has collected its tests: which test fails first, if any."""

import json
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import pytest

SLOWER, EXTRA_S = 4, 3
"""A test may take so many times the CPU seconds that it took without a change, and so many more."""


class Outcome(StrEnum):
    """CAUGHT: a test failed, or the process ended. ENDLESS: a test took far longer than it should. UNAPPLIED: no code
    that is loaded changed.
    """

    CAUGHT = "caught"
    ENDLESS = "endless"
    SURVIVED = "survived"
    UNAPPLIED = "unapplied"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`by` is the test that failed; `cpu_s` what the child took."""

    outcome: Outcome
    by: str
    cpu_s: float


class TestRun:
    """The tests of one child, and a plugin of its session: `failed` is the first that failed, `took_s` by test."""

    __test__ = False

    def __init__(self) -> None:
        self.failed = ""
        self.took_s: dict[str, float] = {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
        self.took_s[report.nodeid] = self.took_s.get(report.nodeid, 0.0) + report.duration

    def run(self, items: Sequence[pytest.Item], known_s: Mapping[str, float] | None) -> None:
        """Every test in turn until one fails; `known_s`: what each takes, None: no bound."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            if known_s is not None:
                _bound_cpu(SLOWER * known_s.get(item.nodeid, 0.0) + EXTRA_S)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return


def measure(session: pytest.Session, run: TestRun) -> dict[str, float]:
    """Seconds of each test without a change. :raises RuntimeError: one fails."""

    def child(say: Callable[[Any], NoReturn]) -> None:
        run.run(session.items, None)
        say([run.failed, run.took_s])

    said, _ = _in_child(child)
    if said is None or said[0]:
        raise RuntimeError(f"a test fails without any change: {said and said[0]}")
    return dict(said[1])


def judge(session: pytest.Session, run: TestRun, known_s: Mapping[str, float], apply: Callable[[], int]) -> Verdict:
    """What comes of a change that `apply` makes in the child; it returns in how many places."""

    def child(say: Callable[[Any], NoReturn]) -> None:
        signal.signal(signal.SIGXCPU, lambda *_: say([Outcome.ENDLESS, ""]))
        try:
            places = apply()
        except Exception as error:  # of whatever kind: the change was noticed when the module was loaded
            say([Outcome.CAUGHT, f"import: {error}"])
        if not places:
            say([Outcome.UNAPPLIED, ""])
        run.run(session.items, known_s)
        say([Outcome.CAUGHT if run.failed else Outcome.SURVIVED, run.failed])

    said, cpu_s = _in_child(child)
    if said is None:
        return Verdict(Outcome.CAUGHT, "the process ended", cpu_s)
    return Verdict(Outcome(said[0]), said[1], cpu_s)


def _in_child(act: Callable[[Callable[[Any], NoReturn]], None]) -> tuple[Any, float]:
    """Fork, let the child act and say one thing; returns that (None: it ended before) and its CPU seconds."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_quiet()

        def say(said: Any) -> NoReturn:
            os.write(writer, json.dumps(said).encode())
            os._exit(0)

        act(say)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, _, usage = os.wait4(pid, 0)
    return (json.loads(data) if data else None), usage.ru_utime + usage.ru_stime


def _be_quiet() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(null, fd)


def _bound_cpu(seconds: float) -> None:
    """End this process, with SIGXCPU, so many CPU seconds from now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, most))
