"""The facts of a recorded run, as `dunlin replay --record` writes them."""

from typing import Any


def member(role: str, name: str, node: str = "node-0", **report: Any) -> dict[str, Any]:
    return {"address": {"role": role, "name": name, "incarnation": 1}, "node": node, **report}


def recorded_facts(
    instances: int = 1, nodes: int = 1, slots: int = 4096, tier_bytes: int = 1 << 28, **settings: Any
) -> dict[str, Any]:
    """A run on that many instances, in turn on the nodes, of each so many slots."""
    held = [f"node-{index}" for index in range(nodes)]
    members = [
        *(
            member("instance", f"instance-{index}", held[index % nodes], instance={"capacity_slots": slots})
            for index in range(instances)
        ),
        *(member("kvstore", f"kvstore-{node}", node, kvstore={"capacity_bytes": tier_bytes}) for node in held),
        member("dispatcher", "dispatcher-0"),
        member("global_manager", "global-manager-0"),
        member("monitor", "monitor-0"),
    ]
    return {
        "info": {"max_positions": 2048, "vocabulary": 1000},
        "asked": {"seed": 0, "speed": 1.0},
        "launched": {"instances": instances, "preset": "chunked", "model": "builtin:tiny"},
        "settings": {"cluster.preset": "chunked", **settings},
        "before": {"members": members},
    }
