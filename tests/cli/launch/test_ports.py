"""Any port is given to one cluster only, though it listens there seconds later."""

import os
import random
import tempfile
import time
from pathlib import Path

import pytest

from cli.launch.errors import LaunchError
from cli.launch.ports import CLAIM_S, claim_port, claim_ports


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ports are marked; every cluster draws the same ones."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(random, "sample", lambda ports, count: [31_001, 31_002])
    return tmp_path / f"dunlin-ports-{os.getuid()}"


@pytest.mark.usefixtures("marks")
def test_clusters_that_start_at_the_same_moment_have_other_ports() -> None:
    assert [claim_port("127.0.0.1", 0, each) for each in ("one", "other")] == [31_001, 31_002]
    with pytest.raises(LaunchError, match="no free port"):
        claim_port("127.0.0.1", 0, "a third")


def test_a_port_of_long_ago_is_given_again(marks: Path) -> None:
    assert claim_port("127.0.0.1", 0, "one") == 31_001
    long_ago_s = time.time() - CLAIM_S - 1
    os.utime(marks / "31001", (long_ago_s, long_ago_s))
    assert claim_port("127.0.0.1", 0, "other") == 31_001
    assert claim_port("127.0.0.1", 0, "a third") == 31_002


def test_a_port_by_its_number_is_not_marked(marks: Path) -> None:
    assert claim_port("127.0.0.1", 31_001, "one") == 31_001
    assert claim_port("127.0.0.1", 31_001, "one again") == 31_001
    assert not marks.exists()


def test_where_nothing_can_be_written_ports_are_given_all_the_same(marks: Path) -> None:
    marks.write_text("a file where the folder should be")
    assert [claim_port("127.0.0.1", 0, each) for each in ("one", "other")] == [31_001, 31_001]


def test_ports_end() -> None:
    with pytest.raises(LaunchError, match="the door: there is no port 65536; choose lower ones"):
        claim_ports("127.0.0.1", 65_535, 2, "the door")
