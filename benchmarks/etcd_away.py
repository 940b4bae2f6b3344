"""etcd stopped, then killed and started again, under load: no request may fail.

python -m benchmarks.etcd_away --away 30
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import output
from benchmarks.chorus import Chorus, make_songs
from benchmarks.cluster import ClusterProcess, stopped
from benchmarks.fleet import placeable_count, settle
from benchmarks.output import Outcome, say
from benchmarks.session import Session
from dunlin.launch.ports import claim_port
from dunlin.launch.readiness import http_answers
from dunlin.membership.embedded import EmbeddedConfig, command
from dunlin.tether import tethered


@dataclass(frozen=True, slots=True)
class Plan:
    """etcd is away for `away_s`, twice; afterwards everybody has `calm_s` to come to terms."""

    away_s: float = 30.0
    calm_s: float = 10.0
    instances: int = 3
    width: int = 4
    songs: int = 8
    prompt_tokens: int = 32
    output_tokens: int = 96


class OwnEtcd:
    """An etcd that no supervisor looks after, so that it can stay away."""

    def __init__(self, folder: Path) -> None:
        client = claim_port("127.0.0.1", 0, "etcd")
        peer = claim_port("127.0.0.1", 0, "etcd's peer port", {client})
        self.endpoint = f"127.0.0.1:{client}"
        self._command = tethered(command(EmbeddedConfig(folder, client, peer)), os.getpid())
        self._log = folder / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, on what an earlier run left, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + 20
        while not http_answers(f"http://{self.endpoint}/health"):
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise RuntimeError(f"etcd did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As if the machine had lost power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


async def run(plan: Plan, cluster: ClusterProcess, etcd: OwnEtcd) -> Outcome:
    """The campaign against a running, deterministic cluster that uses `etcd`."""
    outcome = Outcome(f"etcd away: stopped, then killed, for {plan.away_s:g} s each")
    async with Session(cluster) as session:
        songs = make_songs(plan.songs, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        chorus = Chorus(session.door, songs, plan.width)
        await chorus.learn()
        singing = asyncio.create_task(chorus.run())
        try:
            for name, away in (("stopped", _stopped), ("killed", _killed)):
                say(f"etcd is {name} for {plan.away_s:g} s")
                outcome.figures[f"requests finished while etcd was {name}"] = await away(plan, chorus, etcd)
                await asyncio.sleep(plan.calm_s)
                await settle(
                    session.look, lambda s: placeable_count(s) == plan.instances, "all instances placeable", 60
                )
        finally:
            chorus.finish()
            await singing
    outcome.broken = list(chorus.failures)
    outcome.figures |= {"requests finished": chorus.finished, "failed": len(chorus.failures)}
    return outcome


async def _stopped(plan: Plan, chorus: Chorus, etcd: OwnEtcd) -> int:
    with stopped(etcd.pid):
        return await _sung(plan, chorus)


async def _killed(plan: Plan, chorus: Chorus, etcd: OwnEtcd) -> int:
    etcd.kill()
    try:
        return await _sung(plan, chorus)
    finally:
        etcd.start()  # blocks for a moment, but a thread of its own would take etcd along when it ends


async def _sung(plan: Plan, chorus: Chorus) -> int:
    before = chorus.finished
    await asyncio.sleep(plan.away_s)
    return chorus.finished - before


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = output.parser(__doc__ or "")
    arguments.add_argument("--away", type=float, default=30.0, metavar="S")
    given = arguments.parse_args(argv)
    plan = Plan(away_s=given.away, instances=given.instances)
    with tempfile.TemporaryDirectory(prefix="dunlin-etcd-") as folder:
        etcd = OwnEtcd(Path(folder))
        etcd.start()
        try:
            flags = ("--instances", str(plan.instances), "--deterministic", "--etcd", etcd.endpoint)
            with ClusterProcess(*flags) as cluster:
                outcome = asyncio.run(run(plan, cluster, etcd))
        finally:
            etcd.kill()
    return output.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
