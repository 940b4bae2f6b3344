"""A cluster whose instance has an engine of two ranks: it answers, also after one of them was killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import dunlin
from cli.launch.cluster_process import ClusterProcess
from dunlin.runtime.procfs import descendants

pytestmark = pytest.mark.cluster

TEXT = "The lighthouse keeper"


def ranks(cluster: ClusterProcess) -> list[int]:
    """The processes of ranks after the first."""
    found = []
    for pid in descendants(cluster.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [pid] if b"--rank=1" in words else []
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcess]:
    with ClusterProcess("--instances", "1", "--tp", "2") as made:
        yield made


def test_it_answers_as_before_after_a_rank_was_killed(cluster: ClusterProcess) -> None:
    with dunlin.Client(cluster.grpc) as client:
        expected = client.generate(TEXT, max_tokens=12, temperature=0.0, ignore_eos=True).tokens
        (killed,) = ranks(cluster)
        os.kill(killed, signal.SIGKILL)
        found = client.generate(TEXT, max_tokens=12, temperature=0.0, ignore_eos=True).tokens
        assert len(found) == 12
        assert found == expected
        assert killed not in ranks(cluster)
