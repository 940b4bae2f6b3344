"""The list of the invariants' watchers: each checks what an event touched, and everything at intervals.

They read the cores' public state (reports, tables, integrity checks) and the messages, and keep their own account.
Numbers are those of docs/campaigns.md. Clients check the tokens of I1.
"""

from simulator.campaign.invariants.authority import FencingWatcher, GroupWatcher, LeadershipWatcher, SuspicionWatcher
from simulator.campaign.invariants.batches import BatchResultsWatcher
from simulator.campaign.invariants.ends import EndWatcher
from simulator.campaign.invariants.groups import GroupStepWatcher, SpreadWatcher
from simulator.campaign.invariants.members import ConversationWatcher, GuestWatcher
from simulator.campaign.invariants.peer_writes import PeerWriteWatcher
from simulator.campaign.invariants.progress import ProgressWatcher, QuotaWatcher
from simulator.campaign.invariants.slots import RowWriteWatcher, SlotWatcher
from simulator.campaign.invariants.starvation import StarvationWatcher
from simulator.campaign.invariants.tier import RegionNameWatcher, RegionWatcher
from simulator.campaign.invariants.watcher import InvariantWatcher

WATCHERS: tuple[type[InvariantWatcher], ...] = (
    FencingWatcher,
    LeadershipWatcher,
    GroupWatcher,
    SlotWatcher,
    RowWriteWatcher,
    PeerWriteWatcher,
    GroupStepWatcher,
    SpreadWatcher,
    ConversationWatcher,
    GuestWatcher,
    RegionWatcher,
    RegionNameWatcher,
    SuspicionWatcher,
    QuotaWatcher,
    ProgressWatcher,
    StarvationWatcher,
    BatchResultsWatcher,
    EndWatcher,
)
