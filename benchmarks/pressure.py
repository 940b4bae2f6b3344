"""More sequences than slots: preempted ones come back from the host tier, and a flipped byte there does no harm.

    python -m benchmarks.pressure

One instance with few slots, deterministic, so that every text can be compared with an undisturbed run.
"""

import asyncio
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import output
from benchmarks.chorus import Chorus, make_songs
from benchmarks.fleet import Unsettled, reports, settle, tier, unbalanced
from benchmarks.output import Outcome, say
from benchmarks.session import Session
from dunlin.launch.proc import descendants
from dunlin.launch.process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, InstanceReport

_FLIPS_MAX = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """`width` streams of `prompt_tokens + output_tokens` want more than `slots`; alone each fits well."""

    slots: int = 512
    tier_mib: int = 64
    width: int = 6
    songs: int = 6
    prompt_tokens: int = 48
    output_tokens: int = 160
    rounds: int = 3


class Pressed:
    """One cluster under pressure."""

    def __init__(self, session: Session, plan: Plan) -> None:
        self.session = session
        self.plan = plan
        songs = make_songs(plan.songs, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        self.alone = Chorus(session.door, songs, 2)
        self.chorus = Chorus(session.door, songs, plan.width)

    async def learn(self) -> None:
        """The texts, with room for all."""
        await self.alone.learn()
        self.chorus.references = self.alone.references

    async def report(self) -> InstanceReport:
        """The instance's."""
        return next(one for _, one in reports(await self.session.look()))

    async def press(self) -> InstanceReport:
        """Sing until enough songs are done; the report afterwards."""
        goal = self.chorus.finished + self.plan.rounds * self.plan.songs
        async with self.chorus.singing():
            await self.chorus.until_finished(goal)
        await asyncio.sleep(1.0)  # the last report is at most half a second away
        return await self.report()

    async def corrupt_one(self, supervisor_pid: int) -> str:
        """Sing, and flip one byte of a region that waits in the tier, until somebody comes upon one; where it was."""
        async with self.chorus.singing():
            for _ in range(_FLIPS_MAX):
                where = await self._flip(supervisor_pid)
                try:
                    await settle(self.session.look, _found_corrupt, "somebody to find it", 5)
                    return where
                except Unsettled:
                    continue  # the region had been read, or was given back, just before
        raise Unsettled(f"{_FLIPS_MAX} flipped bytes, and nobody read one")

    async def _flip(self, supervisor_pid: int) -> str:
        status = await settle(self.session.look, _holds_regions, "a region in the tier", 60)
        kept = tier(status)
        assert kept is not None
        with standing_still([pid for pid in descendants(supervisor_pid) if _is_engine_or_instance(pid)]):
            return flip_a_byte(tier_file(kept[0].pid))


def _holds_regions(status: FleetStatus) -> bool:
    kept = tier(status)
    return kept is not None and kept[1].regions > 0


def _found_corrupt(status: FleetStatus) -> bool:
    return any(report.corrupt_regions_total for _, report in reports(status))


@contextmanager
def standing_still(pids: list[int]) -> Iterator[None]:
    """Nobody reads or writes the tier inside. Short: three seconds without progress would be a fault of their own."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.05)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _is_engine_or_instance(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"services.instance" in words or b"dunlin.engine" in words


def tier_file(pid: int) -> Path:
    """The shared memory of the kvstore `pid`: the largest of its memory files."""
    found = [path for path in Path(f"/proc/{pid}/fd").iterdir() if "memfd:" in os.readlink(path)]
    return max(found, key=lambda path: path.stat().st_size)


def flip_a_byte(path: Path) -> str:
    """Flip one byte in the middle of the data that the file holds; where, in words."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        used = [at for at in range(0, len(memory), 4096) if memory[at : at + 4096].count(0) < 4096]
        if not used:
            return "nothing: no data yet"
        at = used[0] + 64
        memory[at] ^= 0x55
    return f"byte {at} of {path.stat().st_size} ({len(used)} pages in use)"


async def run(plan: Plan, cluster: ClusterProcess, corrupt: bool) -> Outcome:
    """One half of the campaign against a running cluster of one instance."""
    outcome = Outcome("pressure" + (", with one flipped byte" if corrupt else ""))
    async with Session(cluster) as session:
        pressed = Pressed(session, plan)
        await pressed.learn()
        if corrupt:
            say(f"flipped {await pressed.corrupt_one(cluster.pid)}")
        found = await pressed.press()
        outcome.broken += pressed.chorus.failures + unbalanced(await session.look())
    _figures(outcome, found, pressed)
    if corrupt:
        outcome.expect(found.corrupt_regions_total > 0, "nobody noticed the flipped byte")
        outcome.expect(found.recomputed_tokens_total > 0, "nothing was recomputed after the flipped byte")
    else:
        outcome.expect(found.restored_regions_total > 0, "nothing was restored from the host tier")
        outcome.expect(found.recomputed_tokens_total == 0, f"{found.recomputed_tokens_total} tokens were recomputed")
    return outcome


def _figures(outcome: Outcome, found: InstanceReport, pressed: Pressed) -> None:
    outcome.figures |= {"requests finished": pressed.chorus.finished, "failed": len(pressed.chorus.failures)}
    for name in ("preemptions", "restored_regions", "restored_tokens", "recomputed_tokens", "corrupt_regions"):
        outcome.figures[name.replace("_", " ")] = getattr(found, f"{name}_total")


def cluster_flags(plan: Plan) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    sizes = ("--slots", str(plan.slots), "--tier-mib", str(plan.tier_mib))
    # Only preempted sequences are to be in the tier, and only from there are they to come back.
    alone = ("--no-prefix-reuse", "--checkpoint-share", "0")
    return ("--instances", "1", "--threads", "1", "--deterministic", *sizes, *alone)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    given = output.parser(__doc__ or "").parse_args(argv)
    code = 0
    for corrupt in (False, True):
        with ClusterProcess(*cluster_flags(Plan())) as cluster:
            code |= output.finish(asyncio.run(run(Plan(), cluster, corrupt)), given.json)
    return code


if __name__ == "__main__":
    sys.exit(main())
