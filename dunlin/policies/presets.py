"""A preset is one choice of policy per decision point. Adding one is a line in the table."""

from collections.abc import Collection
from dataclasses import dataclass

from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.dispatch import POLICIES as DISPATCH_POLICIES
from dunlin.policies.evict import EVICT_POLICIES
from dunlin.policies.group import GROUP_POLICIES
from dunlin.policies.rebalance import REBALANCE_POLICIES


@dataclass(frozen=True, slots=True)
class Preset:
    """The names of the policies that go together.

    Raises:
        ValueError: a name that its table does not have.
    """

    dispatch: str
    batch: str
    evict: str
    group: str
    rebalance: str

    def __post_init__(self) -> None:
        tables: dict[str, Collection[str]] = {
            "dispatch": DISPATCH_POLICIES,
            "batch": BATCH_POLICIES,
            "evict": EVICT_POLICIES,
            "group": GROUP_POLICIES,
            "rebalance": REBALANCE_POLICIES,
        }
        for point, table in tables.items():
            if getattr(self, point) not in table:
                raise ValueError(f"no {point} policy {getattr(self, point)!r}: choose one of {', '.join(table)}")


PRESETS: dict[str, Preset] = {
    "chunked": Preset("prefix_affinity", "chunked", "youngest", "local_groups", rebalance="none"),
    "least_loaded": Preset("least_loaded", "chunked", "youngest", "local_groups", rebalance="none"),
    "llumnix": Preset("llumnix", "chunked", "youngest", "local_groups", rebalance="llumnix"),
}
DEFAULT_PRESET = "chunked"
