"""How much memory the kernel says is to be had: the machine's, within the control group's limit."""

from pathlib import Path

import pytest

from dunlin.runtime.memory import available_memory_bytes


def fake_machine(tmp_path: Path, *, limit: str, current: int = 100, inactive: int = 30) -> int:
    proc, group = tmp_path / "proc", tmp_path / "cgroup/box"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:       2 kB\n")
    (proc / "self/cgroup").write_text("1:cpu:/x\n0::/box\n")
    (group / "memory.max").write_text(limit + "\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    return available_memory_bytes(proc, tmp_path / "cgroup")


@pytest.mark.parametrize(("limit", "available"), [("max", 2048), ("999999", 2048), ("1000", 1000 - 100 + 30)])
def test_the_tighter_of_machine_and_control_group_counts(tmp_path: Path, limit: str, available: int) -> None:
    assert fake_machine(tmp_path, limit=limit) == available


def test_without_a_control_group_the_machine_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 2 kB\n")
    assert available_memory_bytes(tmp_path, tmp_path / "none") == 2048
