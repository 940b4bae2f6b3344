"""The cluster that a recorded run was served by, as a modelled one: all of it, or a refusal that names what is missing.

Reads the facts of `dunlin replay --record`; knows no request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dunlin.config.errors import ConfigError
from dunlin.config.resolve import PRESET, Settings, resolve
from dunlin.config.sources import Given
from services.instance.process_config import EngineConfig, InstanceProcessConfig
from services.settings import TABLES, is_simulated

_TIER = "kvstore.tier.capacity_bytes"


class RunError(ValueError):
    """A record lacks what a simulation needs, or what it says cannot be built; the text says what."""


@dataclass(frozen=True, slots=True)
class RecordedCluster:
    """The processes, the memory and the settings of a recorded cluster.

    `slots` of each instance, `tier_bytes` of each node. `settings` by role, by their names within it.
    """

    instances: int
    dispatchers: int
    managers: int
    nodes: int
    slots: int
    tier_bytes: int
    max_positions: int
    vocabulary: int
    preset: str
    settings: Mapping[str, Mapping[str, Any]]


def recorded_cluster(facts: Mapping[str, Any]) -> RecordedCluster:
    """The cluster that the facts describe. Raises RunError."""
    info = _part(facts, "info", dict, "what model it was")
    settings = _part(facts, "settings", dict, "its settings (a run over --endpoint has none)")
    members = _members(facts)
    instances, kvstores = members["instance"], members["kvstore"]
    preset, by_role = _settings(settings)
    return RecordedCluster(
        instances=len(instances),
        dispatchers=len(members["dispatcher"]),
        managers=len(members["global_manager"]),
        nodes=_nodes(instances, kvstores),
        slots=_same(instances, "instance", "capacity_slots"),
        tier_bytes=_same(kvstores, "kvstore", "capacity_bytes"),
        max_positions=int(info["max_positions"]),
        vocabulary=int(info["vocabulary"]),
        preset=preset,
        settings=by_role,
    )


def recorded_engine(facts: Mapping[str, Any]) -> EngineConfig:
    """How the engines of the recorded instances computed. Raises RunError."""
    settings = _resolved(_part(facts, "settings", dict, "its settings (a run over --endpoint has none)"))
    try:
        return settings.configure("instance", InstanceProcessConfig, node="", model="").engine
    except ConfigError as error:
        raise RunError(f"the record has settings that do not go together here: {error}") from None


def _part(facts: Mapping[str, Any], name: str, kind: type[Any], what: str) -> Any:
    part = facts.get(name)
    if not isinstance(part, kind):
        raise RunError(f"the record does not say {what} (no `{name}`): record it with `dunlin replay --record` here")
    return part


def _members(facts: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The processes of each role, by name. Raises RunError: a role has none."""
    status = _part(facts, "before", dict, "which processes it had")
    found: dict[str, list[Mapping[str, Any]]] = {
        role: [] for role in ("instance", "dispatcher", "global_manager", "kvstore")
    }
    for member in sorted(status.get("members", ()), key=_by_number):
        found.setdefault(member["address"]["role"], []).append(member)
    for role, members in found.items():
        if not members:
            raise RunError(f"the record lists no {role}")
    return found


def _by_number(member: Mapping[str, Any]) -> tuple[int, str]:
    name = str(member["address"]["name"])
    number = name.rpartition("-")[2]
    return (int(number) if number.isdigit() else 0, name)


def _same(members: Sequence[Mapping[str, Any]], report: str, figure: str) -> int:
    """The figure that the reports of all members share. Raises RunError naming those that differ."""
    values = {member["address"]["name"]: (member.get(report) or {}).get(figure, 0) for member in members}
    if len(set(values.values())) > 1 or not all(values.values()):
        told = ", ".join(f"{name} {value}" for name, value in values.items())
        raise RunError(f"{figure} must be known and the same everywhere for now; the record says {told}")
    return int(next(iter(values.values())))


def _nodes(instances: Sequence[Mapping[str, Any]], kvstores: Sequence[Mapping[str, Any]]) -> int:
    """How many nodes there were. Raises RunError: a modelled cluster spreads instances over nodes in turn only."""
    placed = [str(member["node"]) for member in instances]
    nodes = list(dict.fromkeys(placed))
    in_turn = [nodes[place % len(nodes)] for place in range(len(placed))]
    if placed != in_turn or sorted(str(member["node"]) for member in kvstores) != sorted(nodes):
        told = ", ".join(f"{member['address']['name']} on {member['node']}" for member in [*instances, *kvstores])
        raise RunError(f"instances are modelled in turn on nodes that each have one kvstore; the record says {told}")
    return len(nodes)


def _resolved(told: Mapping[str, Any]) -> Settings:
    """Raises RunError: one is unknown here, or has another form."""
    try:
        return resolve(TABLES, [Given(name, value, "the record") for name, value in told.items()])
    except ConfigError as error:
        raise RunError(f"the record has settings that cannot be built here: {error}") from None


def _settings(told: Mapping[str, Any]) -> tuple[str, dict[str, dict[str, Any]]]:
    """The preset, and the settings by role. Raises RunError."""
    settings = _resolved(told)
    by_role: dict[str, dict[str, Any]] = {}
    for name, value in settings.given().items():
        role, _, rest = name.partition(".")
        if is_simulated(name) and name not in (PRESET, _TIER):
            by_role.setdefault(role, {})[rest] = value
    return str(settings[PRESET]), by_role
