"""What campaigns conclude, from made-up statuses, records and traces: a campaign that cannot fail proves nothing."""

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from benchmarks.doors import door_fuzz
from benchmarks.faults import fault_matrix
from benchmarks.faults.failover import FailoverPlan, cluster_flags, faults, longest_pause_s
from benchmarks.fuzzing import parser_fuzz
from benchmarks.fuzzing.parsers import PARSERS
from benchmarks.harness.decisions import DispatchedAttempt, RowCommands, dispatched_attempts, row_commands
from benchmarks.harness.fault_targets import ROLES, epoch_of, pid_of
from benchmarks.harness.fleet_status import (
    NotReached,
    instances_with_used_slots,
    placeable_count,
    unbalanced,
    wait_until,
)
from benchmarks.harness.layer_orders import fewer_layers, missing_layers
from benchmarks.harness.phase_load import gap_s
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.effects import Address
from dunlin.messages.dispatch import Cancel, Place
from dunlin.messages.engine import Interrupt, Resume
from dunlin.messages.fleet import FleetStatus, InstanceReport, ManagerReport, MemberStatus, Reason
from dunlin.messages.types import Verdict, i32
from dunlin.workload.loadgen.load_generator import RequestFailed, StreamedTokens
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job


def status(**changes: Any) -> FleetStatus:
    report = dataclasses.replace(
        InstanceReport(ready=True, plan_version=1, capacity_slots=10, free_slots=6, owned_slots=4), **changes
    )
    return FleetStatus(1, (MemberStatus(Address("instance", "i", 1), connected=True, instance=report),))


def test_lost_and_doubled_slots_are_found() -> None:
    assert unbalanced(status()) == []
    assert unbalanced(status(reserved_slots=1, moving_slots=1, quarantined_slots=1, owned_slots=1)) == []
    assert unbalanced(status(free_slots=5)) == ["i: 9 of 10 slots"]
    assert unbalanced(status(quarantined_slots=1)) == ["i: 11 of 10 slots"]


def test_slots_that_are_not_free_are_found() -> None:
    assert instances_with_used_slots(status(free_slots=10, owned_slots=0)) == []
    assert instances_with_used_slots(status(cached_slots=4)) == []
    assert instances_with_used_slots(status()) == ["i: 6 of 10 free"]


def test_settle_gives_up_and_says_on_what() -> None:
    async def look() -> FleetStatus:
        return status()

    assert placeable_count(asyncio.run(wait_until(look, lambda s: True, "x"))) == 1
    with pytest.raises(NotReached, match=r"still waiting for the moon"):
        asyncio.run(wait_until(look, lambda s: False, "the moon", limit_s=0.1))


@pytest.mark.parametrize(("kills", "stops"), [(30, 10), (3, 1), (0, 2), (5, 0), (1, 1)])
def test_faults_are_as_many_as_planned_of_each_part_in_turn(kills: int, stops: int) -> None:
    found = list(faults(FailoverPlan(kills=kills, stops=stops)))
    count = Counter(kind for kind, _ in found)
    assert (count["kill"], count["stop"]) == (kills, stops)
    for kind in ("kill", "stop"):
        parts = [part for one, part in found if one == kind]
        assert parts == [("instance", "engine")[i % 2] for i in range(len(parts))]


def test_the_longest_pause_of_a_stream_lies_between_two_of_its_tokens() -> None:
    assert longest_pause_s([1.0, 1.5, 3.0, 3.25]) == 1.5
    assert longest_pause_s([1.0]) == longest_pause_s([]) == 0.0


def reason(attempt: int, at_s: float, to: str, tokens: int = 3) -> tuple[Reason, object]:
    record = Reason(at_s, Address("dispatcher", "d", 1), Address("instance", to, 2), "Place", b"")
    return record, Place(1, attempt, i32(range(tokens)), prompt_tokens=3, max_tokens=9)


def test_hand_outs_are_the_places_in_order_of_attempt() -> None:
    cancel = (reason(1, 5, "a")[0], Cancel(1, 1))
    assert dispatched_attempts([reason(2, 9, "b", tokens=5), cancel, reason(1, 1, "a")]) == [
        DispatchedAttempt(1, "a", 1, 0),
        DispatchedAttempt(2, "b", 9, 2),
    ]


class Choir:
    """Answers with the prompt's first token and counting up; from the `spoil_from`-th song on with `spoil`."""

    def __init__(self, spoil: list[int] | Exception | None = None, spoil_from: int = 99) -> None:
        self.spoil = spoil
        self.spoil_from = spoil_from
        self.sung = 0

    async def stream(self, job: Job) -> AsyncGenerator[StreamedTokens, None]:
        self.sung += 1
        spoil = self.spoil if self.sung > self.spoil_from else None
        yield StreamedTokens((), f"req-{self.sung}")
        await asyncio.sleep(0)
        if isinstance(spoil, Exception):
            raise spoil
        yield StreamedTokens(spoil or [job.prompt[0] + i for i in range(job.max_tokens)])


def sing(choir: Choir, goal: int = 8) -> VerifiedLoad:
    async def run() -> VerifiedLoad:
        chorus = VerifiedLoad(choir, make_jobs(4, 3, 5, vocabulary=50), width=2)
        await chorus.record_references()
        singing = asyncio.create_task(chorus.run())
        await chorus.until_finished(goal)
        chorus.stop()
        await singing
        return chorus

    return asyncio.run(run())


def test_right_songs_are_no_failures() -> None:
    chorus = sing(Choir())
    assert chorus.finished >= 8
    assert chorus.failures == []
    assert chorus.open == {}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        ([-1] * 5, "another text from token"),
        ([1, 2], "error: 2 of 5 tokens"),
        (RequestFailed("lost"), "error: lost"),
    ],
)
def test_a_wrong_a_short_and_a_failed_song_are_failures(spoil: list[int] | Exception, complaint: str) -> None:
    chorus = sing(Choir(spoil, spoil_from=4 + 3))
    assert complaint in chorus.failures[0]
    assert chorus.failures[0].startswith("req-8")


def test_a_request_is_open_until_its_last_token() -> None:
    load = VerifiedLoad(Choir(), make_jobs(1, 3, 5, 100), 1)
    record = RequestRecord(0.0, 3, 5, tokens=[1, 2, 3, 4])
    assert not load.is_open(record)
    load.open[0] = record
    assert load.is_open(record)
    assert load.mid_stream() == [], "it is past its half"
    record.tokens.append(5)
    assert not load.is_open(record)


def test_commands_about_rows_are_counted_by_what_they_do() -> None:
    sender, to = Address("instance", "i", 1), Address("engine", "i")
    messages = (
        Interrupt(Verdict.SUSPEND, ticket=1),
        Interrupt(Verdict.SUSPEND, ticket=2),
        Interrupt(Verdict.DISCARD, ticket=3),
        Resume(4),
        Place(1, 2, i32([5]), 1, 9, handle=7),
        Place(1, 1, i32([5]), 1, 9),
    )
    found = row_commands([(Reason(1.0, sender, to, "", b""), message) for message in messages])
    assert found == RowCommands(suspends=2, discards=1, resumes=1, moves=1)
    assert (found + found).interrupts == 6


def test_layers_that_are_missing_are_named() -> None:
    assert missing_layers(status(layers_held=2, model_layers=4)) == ["i: 2 of 4 layers"]
    assert missing_layers(status(layers_held=4, model_layers=4)) == []
    draw = random.Random(1)
    for _ in range(50):
        some = fewer_layers(draw, 4)
        assert some == sorted(set(some))
        assert 0 < len(some) < 4


def test_a_restless_failover_sets_both_policies() -> None:
    flags = cluster_flags(FailoverPlan(interrupts="restless", moves=True))
    assert "instance.interrupts.policy=restless" in flags
    assert "manager.rebalance.policy=restless" in flags
    assert not any("rebalance" in flag for flag in cluster_flags(FailoverPlan()))


def sung(*token_s: float, at_s: float = 0.0) -> RequestRecord:
    return RequestRecord(at_s, 1, len(token_s), token_s=list(token_s))


@pytest.mark.parametrize(
    ("record", "gap"),
    [
        (sung(1.0, 2.0, 5.0, 6.0), 3.0),  # the fault at 2.5 s fell into its longest silence
        (sung(1.0, 9.0, 9.5), 8.0),
        (sung(3.0, 4.0), 2.0),  # no token yet: how much later than in the undisturbed run the first one came
        (sung(3.0, 4.0, at_s=2.9), 0.0),
        (sung(1.0, 2.0), None),  # had ended
        (sung(), None),
    ],
)
def test_a_faults_gap_is_what_a_stream_waited_for_its_sake(record: RequestRecord, gap: float | None) -> None:
    assert gap_s(record, at_s=2.5, undisturbed_s=1.0) == gap


def test_the_table_of_faults_names_every_cell_but_the_void_ones() -> None:
    cells = fault_matrix.table(list(ROLES), list(fault_matrix.PHASES), ["kill", "stop"])
    assert len(cells) == len(set(cells)) == (len(ROLES) * len(fault_matrix.PHASES) - len(fault_matrix.EMPTY_CELLS)) * 2
    assert not {(role, phase) for role, phase, _ in cells} & set(fault_matrix.EMPTY_CELLS)


def test_a_victim_is_found_by_its_role() -> None:
    managers = [
        MemberStatus(Address("global_manager", name, 3), pid=pid, connected=True, manager=ManagerReport(epoch=epoch))
        for name, pid, epoch in (("a", 11, 0), ("b", 12, 9))
    ]
    engine = MemberStatus(Address("instance", "i", 4), pid=13, connected=True, instance=InstanceReport(engine_pid=14))
    lost = MemberStatus(Address("instance", "j", 5), pid=15, connected=False, instance=InstanceReport(engine_pid=16))
    status, nowhere = FleetStatus(1, (*managers, engine, lost)), ClusterProcess()
    assert [pid_of(role, status, nowhere, 1) for role in ("standby", "leader", "instance", "engine", "monitor")] == [
        11,
        12,
        13,
        14,
        0,
    ]
    assert epoch_of(status) == 9


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_its_seeds_and_nonsense(name: str) -> None:
    parser = PARSERS[name]
    for data in (*parser.seeds, b"", b"\x00", b"{}", b"\xff" * 64):
        parser.parse(data)


def test_a_crash_and_a_leak_of_a_parser_are_seen() -> None:
    said = "#1 cov: 3\n#2 NEW cov: 17 ft: 2\nValueError: bad\nat x\nstat::number_of_executed_units: 512\n"
    flat, growing = [100] * 8, [100, 100, 100, 100, 200, 200, 300, 300]
    assert parser_fuzz.judge(0, said, flat) == parser_fuzz.FuzzVerdict(512, 17, 0, "")
    assert parser_fuzz.judge(77, said, growing) == parser_fuzz.FuzzVerdict(
        512, 17, 200, "exit code 77: ValueError: bad"
    )


def test_mutations_depend_on_their_seed_and_leave_some_messages_whole() -> None:
    made = [[door_fuzz.mutate(b"a message", draw) for draw in [random.Random(5)] for _ in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    assert b"a message" in made[0]
    assert len(set(made[0])) > 20
