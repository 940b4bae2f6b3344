"""What the processes of a cluster take of the host's cores, by their roles."""

from contextlib import suppress
from pathlib import Path

from dunlin.runtime.procfs import command_line, descendants, process_cpu_s


def core_seconds(supervisor: int) -> dict[str, float]:
    """Core-seconds so far of `supervisor` and the processes below it, by role: the module that each runs and its name
    there, or its program.
    """
    found: dict[str, float] = {}
    for pid in (supervisor, *descendants(supervisor)):
        with suppress(OSError):  # it ended meanwhile
            role = _role(command_line(pid))
            found[role] = found.get(role, 0.0) + process_cpu_s(pid)
    return found


def since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What was used between two looks, of those that used a twentieth of a second."""
    spent = {role: after[role] - before.get(role, 0.0) for role in after}
    return {role: seconds for role, seconds in sorted(spent.items()) if seconds >= 0.05}


def _role(line: str) -> str:
    program, _, arguments = line.partition(" -m ")
    if not arguments:
        return Path(program.split()[0]).name if program.split() else "?"
    module, *rest = arguments.split()
    return " ".join([module, *(word for word in rest[:2] if not word.startswith("-") and "/" not in word)])
