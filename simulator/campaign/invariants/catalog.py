"""The invariants, as watchers of a cluster: each looks at what an event touched, and at everything from time to time.

They read what the cores show to anybody (reports, tables, integrity checks) and what goes over the streams, and keep
their own account of it. Numbers are those of docs/campaigns.md. I1 is the readers' own; I10 needs batch jobs, which do
not exist yet.
"""

from simulator.campaign.invariants.authority import Authority, Fencing, Groups, Leadership
from simulator.campaign.invariants.progress import Limits, Progress
from simulator.campaign.invariants.slots import Rows, Slots
from simulator.campaign.invariants.tier import Names, Regions
from simulator.campaign.invariants.watcher import Watcher

WATCHERS: tuple[type[Watcher], ...] = (
    Fencing,
    Leadership,
    Groups,
    Slots,
    Rows,
    Regions,
    Names,
    Authority,
    Limits,
    Progress,
)
