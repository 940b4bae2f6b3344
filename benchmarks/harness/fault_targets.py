"""Which process a fault is for: roles to process ids, as the monitor and /proc say now."""

from pathlib import Path

from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.runtime.procfs import descendants

ROLES = ("dispatcher", "leader", "standby", "instance", "engine", "kvstore", "monitor", "etcd")
"""The eight that the table names; `leader` and `standby` are global managers."""


def pid_of(role: str, status: FleetStatus, cluster: ClusterProcess, turn: int = 0, endpoint: str = "") -> int:
    """The process that plays `role` now; of several the one at `endpoint`, else `turn` chooses. 0: there is none."""
    if role == "etcd":
        found = [pid for pid in descendants(cluster.pid) if _name(pid) == "etcd"]
    elif role == "engine":
        found = [member.instance.engine_pid for member in _of("instance", status) if member.instance is not None]
    elif role in ("leader", "standby"):
        found = [member.pid for member in _of("global_manager", status) if leads(member) == (role == "leader")]
    else:
        members = _of(role, status)
        found = [member.pid for member in members if member.endpoint == endpoint] or [member.pid for member in members]
    return found[turn % len(found)] if found else 0


def leads(member: MemberStatus) -> bool:
    """Whether it is the manager with a term."""
    return member.manager is not None and member.manager.epoch > 0


def epoch_of(status: FleetStatus) -> int:
    """The term of the manager that leads, 0 when none does."""
    return max((m.manager.epoch for m in status.members if m.manager is not None and m.connected), default=0)


def _of(role: str, status: FleetStatus) -> list[MemberStatus]:
    return [member for member in status.members if member.address.role == role and member.connected]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
