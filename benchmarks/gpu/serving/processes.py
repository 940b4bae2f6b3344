"""What the processes of a cluster take of the host's cores, by their roles."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def core_seconds(root: int) -> dict[str, float]:
    """Core-seconds so far of the processes below `root`, by `role`: a command line's last plain words."""
    found: dict[str, float] = {}
    for pid in _descendants(root):
        try:
            used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found[_role(words)] = found.get(_role(words), 0.0) + (int(used[11]) + int(used[12])) / TICKS
    return found


def since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What was used between two looks, of those that used a twentieth of a second."""
    spent = {role: after[role] - before.get(role, 0.0) for role in after}
    return {role: seconds for role, seconds in sorted(spent.items()) if seconds >= 0.05}


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def _role(words: list[bytes]) -> str:
    names = [word.decode(errors="replace") for word in words if word]
    modules = [names[at + 1] for at, word in enumerate(names[:-1]) if word == "-m"]
    if modules:
        at = names.index(modules[0])
        rest = [word for word in names[at + 1 : at + 3] if not word.startswith("-") and "/" not in word]
        return " ".join([modules[0], *rest])
    return Path(names[0]).name if names else "?"
