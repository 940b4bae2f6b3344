"""A preset is one choice of policy per decision point. Adding one is a line in the table.

The same table decides for live services and for simulated ones. `docs/presets.md` says where each comes from.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dunlin.policies.admit import ADMIT_POLICIES
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.by_length import POOL_POLICIES, QUEUE_POLICIES
from dunlin.policies.dispatch import DISPATCH_POLICIES
from dunlin.policies.groups.group import GROUP_POLICIES, GROUPS_OF_SEVERAL
from dunlin.policies.groups.long_requests import LONG_POLICIES
from dunlin.policies.handoff import HANDOFF_POLICIES
from dunlin.policies.interrupt import INTERRUPT_POLICIES
from dunlin.policies.overtake import OVERTAKE_POLICIES
from dunlin.policies.preemption import PREEMPTION_MODES
from dunlin.policies.rebalance import REBALANCE_POLICIES
from dunlin.policies.victim import VICTIM_POLICIES


@dataclass(frozen=True, slots=True)
class Preset:
    """The names of the policies that go together.

    Raises:
        ValueError: a name that its table does not have.
    """

    dispatch: str = "least_loaded"
    batch: str = "chunked"
    victim: str = "youngest"
    group: str = "local_groups"
    rebalance: str = "none"
    preemption: str = "spill"
    admit: str = "all"
    handoff: str = "none"
    interrupt: str = "never"
    overtake: str = "never"
    long: str = "refuse"
    queue: str = "arrival"
    pool: str = "shared"

    def __post_init__(self) -> None:
        tables: dict[str, Collection[str]] = {
            "dispatch": DISPATCH_POLICIES,
            "batch": BATCH_POLICIES,
            "victim": VICTIM_POLICIES,
            "group": GROUP_POLICIES,
            "rebalance": REBALANCE_POLICIES,
            "preemption": PREEMPTION_MODES,
            "admit": ADMIT_POLICIES,
            "handoff": HANDOFF_POLICIES,
            "interrupt": INTERRUPT_POLICIES,
            "overtake": OVERTAKE_POLICIES,
            "long": LONG_POLICIES,
            "queue": QUEUE_POLICIES,
            "pool": POOL_POLICIES,
        }
        for point, table in tables.items():
            if getattr(self, point) not in table:
                raise ValueError(f"no {point} policy {getattr(self, point)!r}: choose one of {', '.join(table)}")

    @property
    def forms_groups(self) -> bool:
        """Whether several instances may serve one request together."""
        return self.group in GROUPS_OF_SEVERAL


PRESETS: dict[str, Preset] = {
    "chunked": Preset(dispatch="prefix_affinity"),
    "least_loaded": Preset(dispatch="least_loaded"),
    "round_robin": Preset(dispatch="round_robin"),
    "shortest_queue": Preset(dispatch="fewest_requests"),
    "elastic": Preset(dispatch="prefix_affinity", group="elastic", long="group"),
    "loongserve": Preset(dispatch="prefix_affinity", group="loongserve", long="group"),
    "loongserve_no_scale_up": Preset(dispatch="prefix_affinity", group="loongserve_no_scale_up", long="group"),
    "static_sp": Preset(dispatch="prefix_affinity", group="whole_pool", long="group"),
    "replicated_sp": Preset(dispatch="prefix_affinity", group="pairs", long="group"),
    "vllm": Preset(dispatch="fewest_requests", batch="prefill_first", preemption="recompute"),
    "fifo": Preset(dispatch="fewest_tokens", batch="prefill_first", preemption="recompute"),
    "priority": Preset(dispatch="fewest_tokens", batch="prefill_first", preemption="recompute", queue="short_first"),
    "reservation": Preset(dispatch="fewest_tokens", batch="prefill_first", preemption="recompute", pool="by_length"),
    "online_only": Preset(dispatch="fewest_requests", preemption="recompute", admit="interactive_only"),
    "vllm++": Preset(dispatch="fewest_requests", preemption="swap"),
    "conserve": Preset(batch="slo_aware", victim="batch_first", interrupt="on_arrival"),
    "unified": Preset(
        dispatch="prefix_affinity",
        batch="harvest",
        victim="batch_first",
        interrupt="recall_rows",
        overtake="shorter",
        group="elastic",
        long="group",
    ),
    "llumnix": Preset(dispatch="llumnix", rebalance="llumnix"),
    "distserve": Preset(dispatch="fewest_tokens", batch="prefill_first", group="prefill_decode", handoff="most_room"),
}
DEFAULT_PRESET = "unified"
SETTING_OF = {
    "dispatch": "dispatcher.placement.policy",
    "admit": "dispatcher.admission.policy",
    "long": "dispatcher.placement.long_policy",
    "queue": "dispatcher.placement.queue_policy",
    "pool": "dispatcher.placement.pool_policy",
    "batch": "instance.scheduler.policy",
    "victim": "instance.preemption.victim_policy",
    "preemption": "instance.preemption.mode",
    "handoff": "instance.kv_handoff.policy",
    "interrupt": "instance.interrupts.policy",
    "overtake": "instance.scheduler.overtake_policy",
    "group": "manager.groups.policy",
    "rebalance": "manager.rebalance.policy",
}
"""Decision point to the setting that names its policy."""


def preset_settings(name: str, role: str = "") -> dict[str, str]:
    """What preset `name` sets: names of settings to policies. With `role` only that role's, by their names within it.

    Raises:
        ValueError: there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}: choose one of {', '.join(PRESETS)}")
    found = {setting: str(getattr(PRESETS[name], point)) for point, setting in SETTING_OF.items()}
    prefix = f"{role}." if role else ""
    return {setting.removeprefix(prefix): policy for setting, policy in found.items() if setting.startswith(prefix)}
