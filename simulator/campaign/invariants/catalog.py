"""The invariants, as watchers of a cluster: each looks at what an event touched, and at everything from time to time.

They read what the cores show to anybody (reports, tables, integrity checks) and what goes over the streams, and keep
their own account of it. Numbers are those of docs/campaigns.md. I1 is the readers' own; I10 needs batch jobs, which do
not exist yet.
"""

from simulator.campaign.invariants.authority import FencingWatcher, GroupWatcher, LeadershipWatcher, SuspicionWatcher
from simulator.campaign.invariants.progress import ProgressWatcher, QuotaWatcher
from simulator.campaign.invariants.slots import RowWriteWatcher, SlotWatcher
from simulator.campaign.invariants.tier import RegionNameWatcher, RegionWatcher
from simulator.campaign.invariants.watcher import InvariantWatcher

WATCHERS: tuple[type[InvariantWatcher], ...] = (
    FencingWatcher,
    LeadershipWatcher,
    GroupWatcher,
    SlotWatcher,
    RowWriteWatcher,
    RegionWatcher,
    RegionNameWatcher,
    SuspicionWatcher,
    QuotaWatcher,
    ProgressWatcher,
)
