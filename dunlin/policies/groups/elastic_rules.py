"""How the elastic groups of each grouping policy get their members. Adding a policy is a line in the table."""

from dataclasses import dataclass

from dunlin.policies.groups.elastic_groups import WAYS, WayToGroup, form_group, form_pair, form_whole_pool, join_group


@dataclass(frozen=True, slots=True)
class ElasticRules:
    """What the manager does for requests that need a group.

    `ways`: how one that no plan placed finds its group. `plans`: requests are planned by how long their prompts take
    first, where that is known (`loongserve.grouping`). `scales_up`: leaders that lack slots get members.
    """

    ways: tuple[WayToGroup, ...]
    plans: bool = False
    scales_up: bool = True


ELASTIC_RULES: dict[str, ElasticRules] = {
    "elastic": ElasticRules(WAYS),
    "loongserve": ElasticRules(WAYS, plans=True),
    "loongserve_no_scale_up": ElasticRules((join_group, form_group), plans=True, scales_up=False),
    "whole_pool": ElasticRules((join_group, form_whole_pool), scales_up=False),
    "pairs": ElasticRules((form_pair, join_group), scales_up=False),
}
"""By the policy's name. `whole_pool` and `pairs` are static: LoongServe's baselines of a fixed degree of parallelism,
all instances of a node, and two of them in as many replicas as there are."""
