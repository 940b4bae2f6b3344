"""A loaded instance is emptied while its streams run, in real processes: nobody notices, and the texts are the same."""

import json
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from benchmarks.harness.processes import stopped
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client
from dunlin.messages.fleet import InstanceReport
from tests.cluster.conftest import eventually

pytestmark = pytest.mark.cluster

Command = Callable[..., "subprocess.CompletedProcess[str]"]
STREAMS = 6
TOKENS = 300


def reports(client: Client) -> dict[str, InstanceReport]:
    return {one.address.name: one.instance for one in client.status().members if one.instance is not None}


def prompt(number: int) -> list[int]:
    return [5 + number, *range(10, 130)]


class Streams:
    """Long answers, one after another in each of some threads, so that there is load until `texts` is asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(STREAMS)
        self._texts = [self._pool.submit(self._read, number) for number in range(STREAMS)]

    def texts(self) -> list[list[list[int]]]:
        """All texts of each thread."""
        self._ended.set()
        return [text.result(300) for text in self._texts]

    def _read(self, number: int) -> list[list[int]]:
        texts: list[list[int]] = []
        while not self._ended.is_set():
            texts.append(generate(self._client, number))
        return texts


def generate(client: Client, number: int) -> list[int]:
    return list(client.generate(prompt(number), max_tokens=TOKENS, seed=number, ignore_eos=True).tokens)


def loaded_instance(client: Client) -> tuple[str, dict[str, InstanceReport]]:
    """The one that most requests run at, once there is one, and all reports."""
    while True:
        found = reports(client)
        name = max(found, key=lambda one: found[one].running)
        if found[name].running > 0:
            return name, found


def drain_loaded(client: Client) -> tuple[str, dict[str, InstanceReport]]:
    """An instance that has heard that it is to be emptied, while requests ran at it; and all reports of before.

    Its engine stands still until it has heard, or on a loaded machine they would be done by then.
    """
    while True:
        name, before = loaded_instance(client)
        with stopped(before[name].engine_pid):
            client.drain(name)
            eventually(lambda: reports(client)[name].draining)  # noqa: B023
            if reports(client)[name].running > 0:
                return name, before
        client.drain(name, undo=True)


def test_draining_a_loaded_instance_changes_no_text_and_it_stays_empty(
    cluster: ClusterProcess, command: Command
) -> None:
    here = ("--data-dir", str(cluster.data_dir))
    with Client(cluster.grpc) as client:
        with ThreadPoolExecutor(STREAMS) as pool:
            undisturbed = list(pool.map(partial(generate, client), range(STREAMS)))
        streams = Streams(client)
        name, before = drain_loaded(client)
        done = command("drain", name, *here)
        assert done.returncode == 0, done.stderr
        assert f"{name} is empty" in done.stdout
        after = reports(client)
        assert after[name].running + after[name].waiting == 0
        assert after[name].draining
        assert after[name].migrations_total > before[name].migrations_total, done.stdout
        found = zip(streams.texts(), undisturbed, strict=True)
        assert all(text == wanted for texts, wanted in found for text in texts)
        steps = reports(client)[name].steps_total
        assert client.generate("Hello", max_tokens=4, ignore_eos=True).tokens
        assert reports(client)[name].steps_total == steps
        assert command("drain", name, "--undo", *here).returncode == 0
        assert not reports(client)[name].draining


def test_what_cannot_be_drained_is_said_in_one_line(cluster: ClusterProcess, command: Command) -> None:
    done = command("drain", "instance-77", "--data-dir", str(cluster.data_dir))
    assert done.returncode == 2
    assert "no instance is called 'instance-77' (the instances are: instance-0, instance-1, instance-2)" in done.stderr
    status = json.loads(command("status", "--json", "--data-dir", str(cluster.data_dir)).stdout)
    drained = [one for one in status["members"] if one["instance"] and one["instance"]["draining"]]
    assert drained == []
