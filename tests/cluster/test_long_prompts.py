"""Prompts that no instance could hold alone, in real processes: several serve them, with the text of one."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.harness.processes import stopped_if_alive
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client, DunlinError, PromptTooLong
from dunlin.messages.fleet import MemberStatus
from dunlin.messages.types import GroupRole
from tests.cluster.conftest import eventually

pytestmark = pytest.mark.cluster

SLOTS = 256
ANSWER = 40
REPORTED_S = 1.5
"""Seconds after which a report has what changed."""
ELASTIC = ("--instances", "3", "--slots", str(SLOTS), "--preset", "unified", "--deterministic")


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
                still.enter_context(stopped_if_alive(one.instance.engine_pid))
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


def bite(client: Client) -> bool:
    """Let the engine of a group's leader or member crash in a step, as a wild write would; False: none computes."""
    for one in [*in_group(client, GroupRole.LEADER), *in_group(client, GroupRole.MEMBER)]:
        assert one.instance is not None
        pid = one.instance.engine_pid
        if not pid or not one.instance.outstanding_steps:
            continue
        with stopped_if_alive(pid) as alive:  # so that what its instance reports of it stays true
            if not alive:
                continue
            time.sleep(REPORTED_S)
            now = [other.instance for other in client.status().members if other.address == one.address]
            if now and now[0] is not None and now[0].outstanding_steps and now[0].engine_pid == pid:
                os.kill(pid, signal.SIGSEGV)
                return True
    return False


def test_a_long_prompt_that_crashes_engines_ends_by_name_after_few_of_them(elastic: ClusterProcess) -> None:
    said: list[str] = []

    def ask() -> None:
        with Client(elastic.grpc) as client:
            try:
                answer(client, int(2.5 * SLOTS), 11)
            except DunlinError as error:
                said.append(str(error))

    with Client(elastic.grpc) as client:
        asking = threading.Thread(target=ask)
        asking.start()
        bites = 0
        while asking.is_alive():
            bites += bite(client)
            asking.join(0.05)
        assert len(said) == 1
        assert "poison" in said[0]
        assert bites <= 4, "two alone, and those of which nobody could hear"
        assert len(answer(client, int(2.5 * SLOTS), 12)) == ANSWER


def test_a_prompt_that_all_instances_together_cannot_hold_is_refused_with_the_limit(elastic: ClusterProcess) -> None:
    with Client(elastic.grpc) as client, pytest.raises(PromptTooLong, match=str(3 * SLOTS)):
        client.generate(prompt(4 * SLOTS, 1), max_tokens=4)
