"""What a dispatcher makes of long prompts that one instance can hold: they wait behind all shorter ones, or have
instances of their own. PecSched's baselines Priority and Reservation (its section 6.2). Knows no request and no view.
"""

from collections.abc import Sequence

from dunlin.effects import Address

QUEUE_POLICIES = ("arrival", "short_first")
"""`arrival`: the oldest first. `short_first`: long prompts after all others, the oldest of either first."""
POOL_POLICIES = ("shared", "by_length")
"""`shared`: every instance takes every prompt. `by_length`: long prompts have instances of their own."""


def long_instances(instances: Sequence[Address], share: float) -> frozenset[Address]:
    """The instances that long prompts have for themselves: a `share` of all, the last by name.

    At least one and never all; none of fewer than two instances.
    """
    if len(instances) < 2:
        return frozenset()
    count = min(len(instances) - 1, max(1, int(share * len(instances) + 0.5)))
    return frozenset(sorted(instances)[-count:])
