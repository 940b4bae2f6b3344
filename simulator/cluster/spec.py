"""The settings of a simulated cluster. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dunlin.config.fields import build
from dunlin.cost.links import NodeLinks
from dunlin.cost.processes import ProcessCosts
from dunlin.policies.presets import DEFAULT_PRESET, PRESETS, preset_settings
from services.dispatcher.config import DispatcherConfig
from services.global_manager.config import GlobalManagerConfig
from services.instance.config import InstanceConfig
from services.kvstore.config import KvstoreConfig
from services.monitor.config import MonitorConfig
from simulator.cluster.network import NetworkSpec
from simulator.engine.model import SimulatedEngineSettings, engine_settings

Overrides = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The number of processes of each role, the policies, the engines and the network.

    Each node has a kvstore with `tier_bytes`, and the instances are spread over the nodes in turn. The mappings hold
    settings of a role, by their names within it, that differ from its defaults; they win over the preset's. `skews_s`:
    clock offsets in seconds, assigned in turn to the processes as they start. `engines`: those that differ from
    `engine`, by their instance's name. `host`: CPU costs of the processes
    (None: no time). `has_profiles`: instances know the exact times of `engine`; else they learn them from their steps,
    where a policy needs them, and the next process of an instance goes on from what the one before learnt.

    Raises:
        ValueError: there is no such preset, or too few of a role. The configurations, when they are asked for: a role
            has no such setting, or a value is out of its range.
    """

    instances: int = 2
    dispatchers: int = 1
    managers: int = 1
    nodes: int = 1
    preset: str = DEFAULT_PRESET
    tier_bytes: int = 1 << 20
    engine: SimulatedEngineSettings = field(default_factory=lambda: engine_settings(progress_s=0.25))
    engines: Mapping[str, SimulatedEngineSettings] = field(default_factory=dict)
    network: NetworkSpec = field(default_factory=NetworkSpec)
    node_links: NodeLinks = field(default_factory=NodeLinks)
    skews_s: tuple[float, ...] = ()
    host: ProcessCosts | None = None
    has_profiles: bool = True
    instance: Overrides = field(default_factory=dict)
    dispatcher: Overrides = field(default_factory=dict)
    manager: Overrides = field(default_factory=dict)
    kvstore: Overrides = field(default_factory=dict)
    monitor: Overrides = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"no preset {self.preset!r}: choose one of {', '.join(PRESETS)}")
        for name in ("instances", "dispatchers", "managers", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: needs at least 1")

    def instance_config(self, node: str) -> InstanceConfig:
        """The configuration of an instance on `node`."""
        return build(InstanceConfig, {**preset_settings(self.preset, "instance"), **self.instance}, node=node)

    def dispatcher_config(self) -> DispatcherConfig:
        """The configuration of every dispatcher."""
        return build(DispatcherConfig, {**preset_settings(self.preset, "dispatcher"), **self.dispatcher})

    def manager_config(self) -> GlobalManagerConfig:
        """The configuration of every global manager."""
        return build(GlobalManagerConfig, {**preset_settings(self.preset, "manager"), **self.manager})

    def kvstore_config(self, node: str) -> KvstoreConfig:
        """The configuration of the kvstore of `node`."""
        values = {"tier.capacity_bytes": self.tier_bytes, **self.kvstore}
        return build(KvstoreConfig, values, tier_path="/tier", node=node)

    def monitor_config(self) -> MonitorConfig:
        """The configuration of every monitor."""
        return build(MonitorConfig, self.monitor)


def spec_of(engine: Overrides | None = None, **settings: Any) -> ClusterSpec:
    """A `ClusterSpec` whose engine is given by flat settings, as `engine_settings` takes them.

    Its preset is `least_loaded` unless `settings` name another.
    """
    made = engine_settings(**{"progress_s": 0.25, **(engine or {})})
    return ClusterSpec(engine=made, **{"preset": "least_loaded", **settings})
