"""Which members are gone for good: stands between the registrations in etcd and the cores.

A lease is a hint. A member whose registration ended is in *doubt* until a probe tells its state: alive, it stays a
member; gone, `MemberDown` goes out; silent, it is asked once more and then counts as gone. While most members are in
doubt at once the membership is *frozen*: a failure of etcd or of the network is likelier than the death of all of them
together, so silence alone does not count then. A process whose name was taken by a newer one is down at once.

Pure: the same messages, verdicts and times give the same results. Knows no probe's workings and no etcd.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf

from dunlin.effects import Address
from dunlin.messages.membership import Member, MemberDown, MemberMessage, MembersReset, MemberUp

MemberName = tuple[str, str]


class ProbeVerdict(Enum):
    """What a probe found: the process answers; surely no such process is there; no answer, which may be either."""

    ALIVE = "alive"
    GONE = "gone"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class LivenessProbe:
    """Ask this member whether it lives; `number` goes back with the verdict."""

    member: Member
    number: int


@dataclass(frozen=True, slots=True)
class FailureDetectorConfig:
    """How long to doubt.

    `silent_tries` probes without answer, `retry_s` apart, make a death, but not in a freeze: there it takes
    `frozen_most_s` without a sign of life. One that lives without registration is asked again after `recheck_s`, then
    ever later up to `recheck_most_s`. A freeze takes `freeze_least` members in doubt, and more than half of all.
    """

    silent_tries: int = 2
    retry_s: float = 0.25
    recheck_s: float = 1.0
    recheck_most_s: float = 4.0
    freeze_least: int = 3
    frozen_most_s: float = 30.0


@dataclass(slots=True)
class _Doubt:
    """One without registration; `alive_s` is when that ended, or its last answer. `due_s` is the time of its next
    probe; infinite while one is out.
    """

    member: Member
    alive_s: float
    number: int
    wait_s: float
    due_s: float = inf
    silent: int = 0


class FailureDetector:
    """All members by name, and the doubts about some of them."""

    def __init__(self, config: FailureDetectorConfig | None = None) -> None:
        self._config = config or FailureDetectorConfig()
        self._members: dict[MemberName, Member] = {}
        self._doubts: dict[MemberName, _Doubt] = {}
        self._number = 0

    @property
    def is_frozen(self) -> bool:
        """Whether so many members are in doubt that silence proves nothing."""
        return len(self._doubts) >= self._config.freeze_least and 2 * len(self._doubts) > len(self._members)

    @property
    def in_doubt(self) -> list[Address]:
        """Members without registration that still count, in the order in which they lost it."""
        return [doubt.member.address for doubt in self._doubts.values()]

    @property
    def next_probe_s(self) -> float:
        """When to call `due` again; infinite: not before something else happens."""
        return min((doubt.due_s for doubt in self._doubts.values()), default=inf)

    def apply(self, now_s: float, message: MemberMessage) -> list[MemberMessage | LivenessProbe]:
        """Take a change of registrations in; returns messages for the cores and the probes to make."""
        match message:
            case MembersReset():
                return self._reset(now_s, message.members)
            case MemberUp():
                return self._up(message.member)
            case MemberDown():
                return self._down(now_s, message.address)

    def record_verdict(
        self, now_s: float, probe: LivenessProbe, verdict: ProbeVerdict
    ) -> list[MemberMessage | LivenessProbe]:
        """What a probe found. One about a doubt that is over by now says nothing."""
        doubt = self._doubts.get(_name(probe.member.address))
        if doubt is None or doubt.number != probe.number:
            return []
        if verdict is ProbeVerdict.ALIVE:
            doubt.silent, doubt.alive_s = 0, now_s
            doubt.due_s = now_s + doubt.wait_s
            doubt.wait_s = min(2 * doubt.wait_s, self._config.recheck_most_s)
            return []
        doubt.silent += 1
        if verdict is ProbeVerdict.GONE or self._silence_counts(now_s, doubt):
            return [self._confirm_gone(doubt)]
        doubt.due_s = now_s + (self._config.recheck_s if self.is_frozen else self._config.retry_s)
        return []

    def due_probes(self, now_s: float) -> list[MemberMessage | LivenessProbe]:
        """The probes whose time has come."""
        return [self._probe(doubt) for doubt in self._doubts.values() if doubt.due_s <= now_s]

    def _reset(self, now_s: float, members: tuple[Member, ...]) -> list[MemberMessage | LivenessProbe]:
        listed = {_name(member.address): member for member in members}
        missing = [member for name, member in self._members.items() if name not in listed]
        for name in [name for name in self._doubts if name in listed]:
            del self._doubts[name]
        fresh = [member for member in missing if _name(member.address) not in self._doubts]
        self._members = dict(sorted({**listed, **{_name(member.address): member for member in missing}}.items()))
        return [MembersReset(tuple(self._members.values())), *(self._doubt(now_s, member) for member in fresh)]

    def _up(self, member: Member) -> list[MemberMessage | LivenessProbe]:
        name = _name(member.address)
        old = self._members.get(name)
        self._members[name] = member
        self._doubts.pop(name, None)
        if old is not None and old.address != member.address:
            return [MemberDown(old.address), MemberUp(member)]
        return [MemberUp(member)]

    def _down(self, now_s: float, address: Address) -> list[MemberMessage | LivenessProbe]:
        name = _name(address)
        member = self._members.get(name)
        if member is None or member.address != address or name in self._doubts:
            return []
        return [self._doubt(now_s, member)]

    def _doubt(self, now_s: float, member: Member) -> LivenessProbe:
        doubt = _Doubt(member, now_s, 0, self._config.recheck_s)
        self._doubts[_name(member.address)] = doubt
        return self._probe(doubt)

    def _probe(self, doubt: _Doubt) -> LivenessProbe:
        self._number += 1
        doubt.number, doubt.due_s = self._number, inf
        return LivenessProbe(doubt.member, doubt.number)

    def _silence_counts(self, now_s: float, doubt: _Doubt) -> bool:
        if doubt.silent < self._config.silent_tries:
            return False
        return not self.is_frozen or now_s - doubt.alive_s >= self._config.frozen_most_s

    def _confirm_gone(self, doubt: _Doubt) -> MemberDown:
        name = _name(doubt.member.address)
        del self._doubts[name], self._members[name]
        return MemberDown(doubt.member.address)


def _name(address: Address) -> MemberName:
    return address.role, address.name
