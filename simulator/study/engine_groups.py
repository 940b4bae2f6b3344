"""Instances of one case that differ: in their device, their tensor parallelism, or their role. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROLES = ("prefill", "decode")
_FORM = "COUNT[:device=D,tp=N,role=prefill|decode]"


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """`count` instances that are alike, each over `tp` GPUs of `device`. `role`: what they do where a preset splits
    prefill and decode; empty: what the manager chooses.
    """

    count: int
    device: str
    tp: int = 1
    role: str = ""

    def __str__(self) -> str:
        gpus = f" of {self.tp} {self.device}" if self.tp > 1 else f" on {self.device}"
        return f"{self.count} instance{'s' if self.count > 1 else ''}{gpus}{f' for {self.role}' if self.role else ''}"


def parse_engine_group(text: str, device: str, tp: int) -> EngineGroup:
    """`COUNT[:device=D,tp=N,role=prefill|decode]`; what is not said is as `device` and `tp`.

    Raises:
        ValueError: it is something else; the text says what.
    """
    count, _, rest = text.partition(":")
    said = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    if unknown := sorted(said.keys() - {"device", "tp", "role"}):
        raise ValueError(f"{text!r}: {unknown[0]!r} is not known; give {_FORM}")
    counts = (count, said.get("tp", str(tp)))
    if not all(number.isdecimal() and int(number) > 0 for number in counts):
        raise ValueError(f"{text!r}: COUNT and N are whole numbers from 1; give {_FORM}")
    if said.get("role", ROLES[0]) not in ROLES:
        raise ValueError(f"{text!r}: no role {said['role']!r}; give {_FORM}")
    return EngineGroup(int(count), said.get("device", device), int(counts[1]), said.get("role", ""))


def named(groups: Sequence[EngineGroup]) -> Iterator[tuple[str, EngineGroup]]:
    """(name, group) of every instance, in the order in which a cluster names them."""
    number = 0
    for group in groups:
        for _ in range(group.count):
            yield f"instance-{number}", group
            number += 1


def prefill_instances(groups: Sequence[EngineGroup]) -> str:
    """The names of those for prefill, as `manager.groups.prefill_instances` takes them; empty: no group has a role.

    Raises:
        ValueError: some groups have a role and others not, or all have the same.
    """
    roles = {group.role for group in groups}
    if roles == {""}:
        return ""
    if roles != set(ROLES):
        raise ValueError("roles of instances: give every group one, and each role to one group at least")
    return ",".join(name for name, group in named(groups) if group.role == ROLES[0])
