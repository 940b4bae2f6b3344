"""Kills instances under load and times the pauses of the streams: `dunlin bench failover`. Brings its own cluster."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dunlin.cli.errors import FAILED, CliError
from dunlin.client import Client, DunlinError
from dunlin.launch.process import ClusterError, ClusterProcess
from dunlin.workload.stats import spread

_TOKENS = 256
_PROMPT_TOKENS = 24
_BACK_S = 60.0
"""So long a killed instance may take to come back."""
_PAUSE_S = 0.25
"""A pause is counted from here on: a step of a busy machine may take almost as long."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds between two tokens of a stream, of the longest pause of each stream that a kill met."""

    kills: int
    streams: int
    failed: int
    wrong_tokens: int
    paused: int
    p50_s: float | None
    p99_s: float | None
    max_s: float | None


class Campaign:
    """One run. Greedy and deterministic: every stream of one prompt must say the same, killed or not."""

    def __init__(self, instances: int, streams: int, kills: int, every_s: float) -> None:
        self._instances = instances
        self._streams = streams
        self._kills = kills
        self._every_s = every_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._gaps: list[float] = []
        self._answers: dict[int, list[int]] = {}
        self._done = self._failed = self._wrong = self._killed = 0

    def run(self) -> Pauses:
        """Do it all.

        Raises:
            CliError: the cluster does not start.
        """
        with _cluster(self._instances) as cluster, Client(cluster.grpc) as client:
            threads = [threading.Thread(target=self._read, args=(client, i)) for i in range(self._streams)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(self._kills):
                    time.sleep(self._every_s)
                    self._kill(client)
                time.sleep(self._every_s)
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()
        return self._found()

    def _read(self, client: Client, number: int) -> None:
        prompt = [(number * 31 + i * 7) % 900 + 50 for i in range(_PROMPT_TOKENS)]
        while not self._stop.is_set():
            tokens: list[int] = []
            gap_s = last_s = 0.0
            try:
                stream = client.stream(prompt, max_tokens=_TOKENS, temperature=0.0, ignore_eos=True)
                for event in stream:
                    now_s = time.monotonic()
                    gap_s = max(gap_s, now_s - last_s) if tokens else 0.0
                    if event.tokens:
                        tokens += list(event.tokens)
                        last_s = now_s
            except DunlinError as error:
                print(f"a stream failed: {error}", file=sys.stderr)
                self._count(number, None, gap_s)
            else:
                self._count(number, tokens, gap_s)

    def _count(self, number: int, tokens: list[int] | None, gap_s: float) -> None:
        with self._lock:
            self._done += 1
            self._failed += tokens is None
            if tokens is not None:
                self._wrong += tokens != self._answers.setdefault(number, tokens) or len(tokens) != _TOKENS
            if gap_s >= _PAUSE_S:
                self._gaps.append(gap_s)

    def _kill(self, client: Client) -> None:
        """SIGKILL for one that has work, once all have come back."""
        until_s = time.monotonic() + _BACK_S
        while time.monotonic() < until_s:
            ready = [one for one in client.status().members if one.instance is not None and one.instance.plan_version]
            busy = [one.pid for one in ready if one.connected and one.instance is not None and one.instance.running]
            if len(ready) == self._instances and busy:
                os.kill(random.choice(busy), signal.SIGKILL)
                self._killed += 1
                return
            time.sleep(0.2)

    def _found(self) -> Pauses:
        gaps = spread(self._gaps)
        p50, p99, most = (gaps.p50, gaps.p99, gaps.max) if self._gaps else (None, None, None)
        return Pauses(self._killed, self._done, self._failed, self._wrong, len(self._gaps), p50, p99, most)


@contextmanager
def _cluster(instances: int) -> Iterator[ClusterProcess]:
    """One that lives as long as the block."""
    try:
        with ClusterProcess("--instances", str(instances), "--deterministic") as cluster:
            yield cluster
    except ClusterError as error:
        raise CliError(str(error), FAILED) from None
