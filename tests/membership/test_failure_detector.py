from dataclasses import dataclass, field
from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.membership.failure_detector import FailureDetector, FailureDetectorConfig, LivenessProbe, ProbeVerdict
from dunlin.messages.membership import Member, MemberDown, MemberMessage, MembersReset, MemberUp

CONFIG = FailureDetectorConfig(silent_tries=2, retry_s=0.25, recheck_s=1.0, recheck_most_s=4.0, frozen_most_s=30.0)


def member(name: str = "a", incarnation: int = 1, role: str = "instance", endpoint: str = "h:1") -> Member:
    return Member(Address(role, name, incarnation), endpoint, "node", 42)


def confirming(*names: str) -> FailureDetector:
    confirmation = FailureDetector(CONFIG)
    confirmation.apply(0.0, MembersReset(tuple(member(name) for name in names)))
    return confirmation


def lose(confirmation: FailureDetector, *names: str, at_s: float = 0.0) -> list[LivenessProbe]:
    probes = [probe for name in names for probe in confirmation.apply(at_s, MemberDown(member(name).address))]
    return [probe for probe in probes if isinstance(probe, LivenessProbe)]


def judge_all(confirmation: FailureDetector, probes: list[Any], verdict: ProbeVerdict, at_s: float) -> list[Any]:
    return [outcome for probe in probes for outcome in confirmation.record_verdict(at_s, probe, verdict)]


DOWN_A = MemberDown(member("a").address)


def test_who_registers_is_up_at_once() -> None:
    confirmation = FailureDetector(CONFIG)
    assert confirmation.apply(0.0, MembersReset((member("a"),))) == [MembersReset((member("a"),))]
    assert confirmation.apply(0.0, MemberUp(member("b"))) == [MemberUp(member("b"))]
    moved = MemberUp(member("b", endpoint="h:2"))
    assert confirmation.apply(0.0, moved) == [moved]
    assert confirmation.next_probe_s == inf


def test_a_lost_registration_is_a_probe_and_nothing_else() -> None:
    confirmation = confirming("a", "b")
    assert confirmation.apply(0.0, DOWN_A) == [LivenessProbe(member("a"), 1)]
    assert confirmation.in_doubt == [member("a").address]
    assert confirmation.apply(0.0, DOWN_A) == []
    assert confirmation.apply(0.0, MemberDown(member("stranger").address)) == []
    assert confirmation.apply(0.0, MemberDown(member("b", incarnation=9).address)) == []
    assert confirmation.next_probe_s == inf


def test_a_probe_that_finds_it_gone_is_a_death_at_once() -> None:
    confirmation = confirming("a", "b")
    (probe,) = lose(confirmation, "a")
    assert confirmation.record_verdict(0.1, probe, ProbeVerdict.GONE) == [DOWN_A]
    assert confirmation.record_verdict(0.2, probe, ProbeVerdict.GONE) == []
    assert confirmation.in_doubt == []


def test_silence_is_a_death_after_a_second_try() -> None:
    confirmation = confirming("a", "b")
    (probe,) = lose(confirmation, "a")
    assert confirmation.record_verdict(1.0, probe, ProbeVerdict.SILENT) == []
    assert confirmation.next_probe_s == 1.25
    assert confirmation.due_probes(1.24) == []
    (again,) = confirmation.due_probes(1.25)
    assert again == LivenessProbe(member("a"), 2)
    assert confirmation.next_probe_s == inf
    assert confirmation.record_verdict(2.25, LivenessProbe(member("a"), 2), ProbeVerdict.SILENT) == [DOWN_A]


def test_one_that_lives_stays_and_is_asked_ever_less_often() -> None:
    confirmation = confirming("a", "b")
    probes: list[Any] = [*lose(confirmation, "a")]
    now_s, waits = 0.0, []
    for _ in range(5):
        assert judge_all(confirmation, probes, ProbeVerdict.ALIVE, now_s) == []
        waits.append(confirmation.next_probe_s - now_s)
        now_s = confirmation.next_probe_s
        probes = [*confirmation.due_probes(now_s)]
        assert len(probes) == 1
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert judge_all(confirmation, probes, ProbeVerdict.GONE, now_s) == [DOWN_A]


def test_signs_of_life_wipe_out_an_earlier_silence() -> None:
    confirmation = confirming("a", "b")
    (probe,) = lose(confirmation, "a")
    confirmation.record_verdict(0.0, probe, ProbeVerdict.SILENT)
    judge_all(confirmation, confirmation.due_probes(0.25), ProbeVerdict.ALIVE, 0.25)
    assert judge_all(confirmation, confirmation.due_probes(1.25), ProbeVerdict.SILENT, 1.25) == []


def test_one_that_registers_again_is_in_doubt_no_more() -> None:
    confirmation = confirming("a", "b")
    (probe,) = lose(confirmation, "a")
    assert confirmation.apply(0.5, MemberUp(member("a"))) == [MemberUp(member("a"))]
    assert confirmation.record_verdict(1.0, probe, ProbeVerdict.GONE) == []
    (later,) = lose(confirmation, "a", at_s=2.0)
    assert confirmation.record_verdict(2.0, probe, ProbeVerdict.GONE) == []
    assert confirmation.record_verdict(2.0, later, ProbeVerdict.GONE) == [DOWN_A]


def test_a_newer_process_of_a_name_takes_the_older_one_down_at_once() -> None:
    newer = member("a", incarnation=7)
    confirmation = confirming("a", "b")
    assert confirmation.apply(0.0, MemberUp(newer)) == [DOWN_A, MemberUp(newer)]
    confirmation = confirming("a", "b")
    (probe,) = lose(confirmation, "a")
    assert confirmation.apply(0.5, MemberUp(newer)) == [DOWN_A, MemberUp(newer)]
    assert confirmation.record_verdict(1.0, probe, ProbeVerdict.GONE) == []


def test_a_reset_keeps_those_it_does_not_list_until_they_are_probed() -> None:
    confirmation = confirming("a", "b", "c")
    reset, *probes = confirmation.apply(5.0, MembersReset((member("c", incarnation=9), member("b"))))
    assert reset == MembersReset((member("a"), member("b"), member("c", incarnation=9)))
    assert probes == [LivenessProbe(member("a"), 1)]
    assert judge_all(confirmation, probes, ProbeVerdict.GONE, 5.1) == [DOWN_A]


def test_a_reset_ends_the_doubts_about_those_it_lists_and_no_others() -> None:
    confirmation = confirming("a", "b", "c", "d", "e")
    probes = lose(confirmation, "a", "b")
    assert confirmation.apply(0.5, MembersReset((member("a"), member("c"), member("d"), member("e")))) == [
        MembersReset(tuple(member(name) for name in "abcde"))
    ]
    assert judge_all(confirmation, probes, ProbeVerdict.GONE, 1.0) == [MemberDown(member("b").address)]


def test_silence_proves_nothing_while_most_are_in_doubt() -> None:
    confirmation = confirming("a", "b", "c", "d", "e")
    probes = lose(confirmation, "a", "b")
    assert not confirmation.is_frozen
    probes += lose(confirmation, "c")
    assert confirmation.is_frozen
    for now_s in range(1, 20):
        assert judge_all(confirmation, probes, ProbeVerdict.SILENT, float(now_s)) == []
        probes = [probe for probe in confirmation.due_probes(now_s + 1.0) if isinstance(probe, LivenessProbe)]
        assert len(probes) == 3
    # One returns: two of five in doubt are no freeze, and they were silent for long.
    confirmation.apply(21.0, MemberUp(member("b")))
    assert not confirmation.is_frozen
    assert judge_all(confirmation, probes, ProbeVerdict.SILENT, 21.0) == [DOWN_A, MemberDown(member("c").address)]


def test_the_surely_dead_are_buried_in_a_freeze_too() -> None:
    confirmation = confirming("a", "b", "c", "d", "e")
    probes = lose(confirmation, "a", "b", "c", "d")
    assert confirmation.is_frozen
    assert confirmation.record_verdict(0.1, probes[0], ProbeVerdict.GONE) == [DOWN_A]
    assert confirmation.record_verdict(0.1, probes[1], ProbeVerdict.SILENT) == []


def test_a_freeze_holds_no_member_for_ever() -> None:
    confirmation = confirming("a", "b", "c")
    probes: list[Any] = [*lose(confirmation, "a", "b", "c", at_s=10.0)]
    now_s, downs = 10.0, []
    while probes:
        now_s += 1.0
        downs += judge_all(confirmation, probes, ProbeVerdict.SILENT, now_s)
        now_s = confirmation.next_probe_s if confirmation.next_probe_s < inf else now_s
        probes = confirmation.due_probes(now_s)
    assert downs == [MemberDown(member(name).address) for name in "abc"]
    assert 40.0 <= now_s <= 43.0


def test_in_a_freeze_it_is_the_silence_that_must_last_not_the_doubt() -> None:
    """They lived for a minute without registration, and then a switch fails for two seconds."""
    confirmation = confirming("a", "b", "c")
    judge_all(confirmation, lose(confirmation, "a", "b", "c"), ProbeVerdict.ALIVE, 60.0)
    for at_s in (64.0, 65.5):
        assert judge_all(confirmation, confirmation.due_probes(at_s), ProbeVerdict.SILENT, at_s) == []
    assert len(judge_all(confirmation, confirmation.due_probes(91.0), ProbeVerdict.SILENT, 91.0)) > 0


def test_two_of_three_are_few_enough_to_die_of_silence() -> None:
    confirmation = confirming("a", "b", "c")
    lose(confirmation, "a", "b")
    assert not confirmation.is_frozen


@dataclass
class Play:
    """Drives a Confirmation the way its host does, and keeps what a core would believe."""

    confirmation: FailureDetector = field(default_factory=lambda: FailureDetector(CONFIG))
    believed: dict[Address, Member] = field(default_factory=dict)
    registered: dict[str, Member] = field(default_factory=dict)
    out: list[LivenessProbe] = field(default_factory=list)
    now_s: float = 0.0

    def carry_out(self, outcomes: list[MemberMessage | LivenessProbe]) -> None:
        for outcome in outcomes:
            match outcome:
                case LivenessProbe():
                    assert outcome.member not in self.registered.values()
                    self.out.append(outcome)
                case MembersReset():
                    self.believed = {one.address: one for one in outcome.members}
                case MemberUp():
                    self.believed[outcome.member.address] = outcome.member
                case MemberDown():
                    assert outcome.address in self.believed
                    assert outcome.address not in [one.address for one in self.registered.values()]
                    del self.believed[outcome.address]

    def check(self) -> None:
        doubted = self.confirmation.in_doubt
        listed = [one.address for one in self.registered.values()]
        assert sorted(self.believed) == sorted(listed + doubted)
        waiting = [probe for probe in self.out if probe.member.address in doubted]
        assert not doubted or waiting or self.confirmation.next_probe_s < inf, "somebody would be doubted for ever"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["up", "newer", "lose", "reset", "verdict", "verdict", "verdict", "wait"]),
        st.sampled_from("abcde"),
        st.sampled_from(list(ProbeVerdict)),
        st.sampled_from([0.1, 1.0, 5.0]),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_core_believes_in_the_registered_and_the_doubted(
    steps: list[tuple[str, str, ProbeVerdict, float]],
) -> None:
    play = Play()
    incarnation = 1
    play.carry_out(play.confirmation.apply(0.0, MembersReset(())))
    for what, name, verdict, wait_s in steps:
        play.now_s += wait_s
        known = play.registered.get(name)
        match what:
            case "newer" | "up":
                incarnation += 1
                doubted = [one for one in play.confirmation.in_doubt if one.name == name]
                same = known.address if known else (doubted[0] if doubted and what == "up" else None)
                fresh = member(name, same.incarnation if same and what == "up" else incarnation)
                if known is not None and known.address != fresh.address:
                    play.registered.pop(name)
                play.registered[name] = fresh
                play.carry_out(play.confirmation.apply(play.now_s, MemberUp(fresh)))
            case "lose" if known is not None:
                del play.registered[name]
                play.carry_out(play.confirmation.apply(play.now_s, MemberDown(known.address)))
            case "reset":
                play.registered.pop(name, None)
                members = tuple(play.registered[one] for one in sorted(play.registered))
                play.carry_out(play.confirmation.apply(play.now_s, MembersReset(members)))
            case "verdict" if play.out:
                play.carry_out(play.confirmation.record_verdict(play.now_s, play.out.pop(0), verdict))
            case "wait":
                play.carry_out(play.confirmation.due_probes(play.now_s))
        play.check()
    for _ in range(200):  # everybody silent from here on: all doubts end
        outcomes = [
            o for probe in play.out for o in play.confirmation.record_verdict(play.now_s, probe, ProbeVerdict.SILENT)
        ]
        play.out.clear()
        play.carry_out(outcomes)
        play.now_s += 1.0
        play.carry_out(play.confirmation.due_probes(play.now_s))
    assert play.confirmation.in_doubt == []
    assert sorted(play.believed) == sorted(one.address for one in play.registered.values())


def test_half_of_all_are_no_majority() -> None:
    confirmation = confirming("a", "b", "c", "d", "e", "f")
    probes = lose(confirmation, "a", "b", "c")
    assert not confirmation.is_frozen
    lose(confirmation, "d")
    assert confirmation.is_frozen
    confirmation.apply(1.0, MemberUp(member("d")))
    assert judge_all(confirmation, probes[:1], ProbeVerdict.GONE, 1.0) == [DOWN_A]
