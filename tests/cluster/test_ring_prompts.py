"""Prompts that several processes compute as rings and few of them keep, with the text of one instance."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.harness.processes import stopped
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client
from dunlin.messages.fleet import InstanceReport
from dunlin.messages.types import GroupRole
from tests.cluster.conftest import eventually
from tests.cluster.test_long_prompts import answer, in_group

pytestmark = pytest.mark.cluster

SLOTS = 256
SHORT = 180
"""Tokens of a prompt that one instance could hold."""
CHUNK = 24
"""Tokens of a prompt that a member computes in one step: four members need two steps for a short one."""
GROUPED = (
    *("--instances", "4", "--slots", str(SLOTS), "--preset", "elastic", "--deterministic"),
    *("--set", f"instance.groups.chunk_tokens={CHUNK}", "--set", "instance.groups.return_after_s=600"),
    *("--set", "dispatcher.placement.long_tokens=100", "--set", "manager.long_requests.idle_group_s=600"),
)


@pytest.fixture(scope="module")
def grouped() -> Iterator[ClusterProcess]:
    with ClusterProcess(*GROUPED) as made:
        yield made


def reports(client: Client) -> list[InstanceReport]:
    return [one.instance for one in client.status().members if one.instance is not None]


def went_round(client: Client) -> tuple[int, int]:
    """(tokens of prompts, members that were free once one was computed)."""
    found = reports(client)
    return sum(each.ring_tokens_total for each in found), sum(each.ring_releases_total for each in found)


def test_a_prompt_goes_round_four_members_and_stays_at_one(cluster: ClusterProcess, grouped: ClusterProcess) -> None:
    """After one of three slabs, which has a group formed of all four."""
    with Client(cluster.grpc) as one, Client(grouped.grpc) as several:
        assert answer(several, 3 * SLOTS, 1) == answer(one, 3 * SLOTS, 1)
        assert len(in_group(several, GroupRole.MEMBER)) == 3
        before = went_round(several)
        assert answer(several, SHORT, 2) == answer(one, SHORT, 2)
        eventually(lambda: went_round(several) == (before[0] + SHORT, before[1] + 3))
        eventually(lambda: not any(each.guest_slots for each in reports(several)))


def test_a_member_dies_while_a_prompt_goes_round(cluster: ClusterProcess, grouped: ClusterProcess) -> None:
    """Between two of its steps: no engine computes until the member is dead."""
    with Client(cluster.grpc) as one, Client(grouped.grpc) as several:
        alone = answer(one, SHORT, 3)
        eventually(lambda: len(in_group(several, GroupRole.MEMBER)) == 3)
        found: list[tuple[int, ...]] = []
        asking = threading.Thread(target=lambda: found.append(answer(several, SHORT, 3)))
        with ExitStack() as still:
            for each in reports(several):
                still.enter_context(stopped(each.engine_pid))
            asking.start()
            eventually(lambda: sum(each.guest_slots > 0 for each in reports(several)) == 4)
            os.kill(in_group(several, GroupRole.MEMBER)[0].pid, signal.SIGKILL)
        asking.join()
        assert found == [alone]
