"""The driver between etcd's watch and the service, with a watch and a prober that the test plays."""

import asyncio
from collections.abc import AsyncIterator

from dunlin.effects import Address
from dunlin.membership.failure_detector import FailureDetector, FailureDetectorConfig, ProbeVerdict
from dunlin.messages.membership import Member, MemberDown, MemberMessage, MembersReset, MemberUp
from dunlin.runtime.core_host import wall_clock
from dunlin.wire.service.membership import MembershipWatch
from tests.wire.ends import eventually, run

QUICK = FailureDetectorConfig(silent_tries=2, retry_s=0.02, recheck_s=0.02, recheck_most_s=0.04, frozen_most_s=600.0)


def member(name: str) -> Member:
    return Member(Address("instance", name, 1), "h:1", "node", 42)


def down(name: str) -> MemberDown:
    return MemberDown(member(name).address)


class Played:
    """A membership whose watch says what `says` is given, and whose probes find what `verdicts` say by name."""

    def __init__(self) -> None:
        self.verdicts: dict[str, ProbeVerdict] = {}
        self.probed: list[str] = []
        self.told: list[MemberMessage] = []
        self.failed: list[BaseException] = []
        self._says: asyncio.Queue[MemberMessage] = asyncio.Queue()
        self.membership = MembershipWatch(
            self._watch(), self, self.told.append, wall_clock(), self._guard, FailureDetector(QUICK)
        )
        self.task = asyncio.create_task(self.membership.run())

    def says(self, *messages: MemberMessage) -> None:
        for message in messages:
            self._says.put_nowait(message)

    async def probe(self, member: Member) -> ProbeVerdict:
        self.probed.append(member.address.name)
        await asyncio.sleep(0)
        return self.verdicts[member.address.name]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.failed == []

    def _guard(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed.append(error)

    async def _watch(self) -> AsyncIterator[MemberMessage]:
        while True:
            yield await self._says.get()


def test_a_death_is_told_when_it_is_confirmed() -> None:
    async def scenario() -> None:
        play = Played()
        play.verdicts = {"a": ProbeVerdict.GONE}
        play.says(MembersReset((member("a"), member("b"))), down("a"))
        await eventually(lambda: len(play.told) == 2)
        assert play.told == [MembersReset((member("a"), member("b"))), down("a")]
        await play.end()

    run(scenario)


def test_one_that_lives_is_probed_again_until_it_registers() -> None:
    async def scenario() -> None:
        play = Played()
        play.verdicts = {"a": ProbeVerdict.ALIVE}
        play.says(MembersReset((member("a"), member("b"))), down("a"))
        await eventually(lambda: len(play.probed) == 4)
        play.says(MemberUp(member("a")))
        await eventually(lambda: len(play.told) == 2)
        assert play.told[1:] == [MemberUp(member("a"))]
        count = len(play.probed)
        await asyncio.sleep(0.2)
        assert len(play.probed) == count
        await play.end()

    run(scenario)


def test_a_freeze_is_reported_and_silence_counts_again_after_it() -> None:
    async def scenario() -> None:
        play = Played()
        play.verdicts = dict.fromkeys("abc", ProbeVerdict.SILENT)
        play.says(MembersReset(tuple(map(member, "abcd"))), *map(down, "abc"))
        await eventually(lambda: play.probed.count("c") >= 4)
        assert play.membership.confirmation.is_frozen
        assert len(play.told) == 1
        play.says(MemberUp(member("c")))
        await eventually(lambda: len(play.told) == 4)
        assert sorted(play.told[2:], key=str) == [down("a"), down("b")]
        await play.end()

    run(scenario)


def test_the_end_takes_probes_and_timer_along() -> None:
    async def scenario() -> None:
        play = Played()
        play.verdicts = {"a": ProbeVerdict.ALIVE}
        play.says(MembersReset((member("a"), member("b"))), down("a"))
        await eventually(lambda: len(play.probed) == 2)
        await play.end()
        count = len(play.probed)
        await asyncio.sleep(0.2)
        assert len(play.probed) == count

    run(scenario)
