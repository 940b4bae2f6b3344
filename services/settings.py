"""Every setting there is: the configuration class of each role, as its process is started with it, and as its core is.

For the commands that start several services, or none (`dunlin up`, `dunlin config`), and the simulator. No service
imports this.
"""

from typing import Any

from dunlin.config.common import ClusterConfig
from dunlin.config.fields import sections_of
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.process_config import DispatcherProcessConfig
from services.global_manager.config import GlobalManagerConfig
from services.instance.config import InstanceConfig
from services.instance.process_config import InstanceProcessConfig
from services.kvstore.config import KvstoreConfig
from services.monitor.config import MonitorConfig
from services.monitor.process_config import MonitorProcessConfig

TABLES: dict[str, type[Any]] = {
    "cluster": ClusterConfig,
    "dispatcher": DispatcherProcessConfig,
    "instance": InstanceProcessConfig,
    "kvstore": KvstoreConfig,
    "manager": GlobalManagerConfig,
    "monitor": MonitorProcessConfig,
}
"""What can be set."""
CORES: dict[str, type[Any]] = {
    "dispatcher": DispatcherConfig,
    "instance": InstanceConfig,
    "kvstore": KvstoreConfig,
    "manager": GlobalManagerConfig,
    "monitor": MonitorConfig,
}
"""What decides, live and simulated."""


def is_simulated(name: str) -> bool:
    """Whether the setting means something to a simulated cluster: those of sockets, files and engines do not."""
    role, _, rest = name.partition(".")
    return name == "cluster.preset" if role == "cluster" else rest.partition(".")[0] in sections_of(CORES[role])
