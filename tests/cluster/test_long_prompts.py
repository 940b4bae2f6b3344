"""Prompts that no instance could hold alone, in real processes: several serve them, with the text of one."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.harness.processes import stopped
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client, DunlinError
from dunlin.messages.fleet import MemberStatus
from dunlin.messages.types import GroupRole
from tests.cluster.conftest import eventually

pytestmark = pytest.mark.cluster

SLOTS = 256
ANSWER = 40
ELASTIC = ("--instances", "3", "--slots", str(SLOTS), "--preset", "elastic", "--deterministic")


@pytest.fixture(scope="module")
def elastic() -> Iterator[ClusterProcess]:
    with ClusterProcess(*ELASTIC) as made:
        yield made


def prompt(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(5, 400), k=tokens)


def answer(client: Client, tokens: int, seed: int) -> tuple[int, ...]:
    return tuple(client.generate(prompt(tokens, seed), max_tokens=ANSWER, seed=seed, ignore_eos=True).tokens)


def in_group(client: Client, part: GroupRole) -> list[MemberStatus]:
    found = client.status().members
    return [one for one in found if one.instance is not None and one.instance.part is part]


def test_long_prompts_beside_short_ones_have_the_text_of_one_instance(
    cluster: ClusterProcess, elastic: ClusterProcess
) -> None:
    """Two and a half slabs, one and a half, and a few tokens; then every slot is free again."""
    lengths = (int(2.5 * SLOTS), int(1.5 * SLOTS), 20)
    with Client(cluster.grpc) as one, Client(elastic.grpc) as several:
        alone = [answer(one, tokens, seed) for seed, tokens in enumerate(lengths)]
        found: dict[int, tuple[int, ...]] = {}
        asking = [
            threading.Thread(target=lambda s=seed, t=tokens: found.update({s: answer(several, t, s)}))
            for seed, tokens in enumerate(lengths)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert [found[seed] for seed in range(len(lengths))] == alone

        def rests() -> bool:
            members = [one.instance for one in several.status().members if one.instance is not None]
            return all(each.free_slots + each.cached_slots == SLOTS and not each.guest_slots for each in members)

        eventually(rests)


def strike(client: Client, part: GroupRole) -> None:
    """Kill an instance of that part, while no engine computes: else a fast one is done before the reports name it."""
    with ExitStack() as still:
        for one in client.status().members:
            if one.instance is not None and one.instance.engine_pid:
                still.enter_context(stopped(one.instance.engine_pid))
        eventually(lambda: bool(in_group(client, part)))
        os.kill(in_group(client, part)[0].pid, signal.SIGKILL)


def test_a_long_answer_outlives_the_death_of_a_member_and_of_the_leader(
    cluster: ClusterProcess, elastic: ClusterProcess
) -> None:
    length = int(1.6 * SLOTS)
    with Client(cluster.grpc) as one, Client(elastic.grpc) as several:
        alone = answer(one, length, 7)
        tokens: list[int] = []
        struck = {GroupRole.MEMBER: ANSWER // 4, GroupRole.LEADER: ANSWER // 2}
        for event in several.stream(prompt(length, 7), max_tokens=ANSWER, seed=7, ignore_eos=True):
            tokens += event.tokens
            for part in [part for part, at in struck.items() if len(tokens) >= at]:
                del struck[part]
                strike(several, part)
        assert not struck
        assert tuple(tokens) == alone


def test_a_prompt_that_all_instances_together_cannot_hold_is_refused_with_the_limit(elastic: ClusterProcess) -> None:
    with Client(elastic.grpc) as client, pytest.raises(DunlinError, match=str(3 * SLOTS)):
        client.generate(prompt(4 * SLOTS, 1), max_tokens=4)
