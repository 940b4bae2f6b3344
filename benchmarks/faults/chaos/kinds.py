"""Which faults of the campaign a live run strikes, and why it refuses the others by name. Pure."""

LIVE_KINDS = (
    "crash_engine",
    "delay",
    "disk_full",
    "drain",
    "drop",
    "duplicate",
    "etcd_outage",
    "half_open",
    "hang_engine",
    "kill_dispatcher",
    "kill_instance",
    "kill_kvstore",
    "kill_manager",
    "kill_monitor",
    "lose_lease",
    "outlive",
    "partition",
    "pause_dispatcher",
    "pause_instance",
    "pause_kvstore",
    "pause_manager",
    "pause_monitor",
    "slow_engine",
    "slow_process",
    "watch_reset",
    "wild_engine",
)
"""Sorted, as the campaign has its own."""

REFUSED_KINDS = {
    "cancel_foreign": "without a file of keys every client may cancel any request",
    "clock_skew": "the rate of a clock belongs to the kernel: no namespace has one of its own; "
    "each process gets an offset of its own instead, from the shape's `skews`",
    "corrupt": "benchmarks.kv.preemption flips bytes of a live tier, where it can tell which were read",
    "late_answers": "an engine's socket ends with it: nothing repeats its last words",
    "late_orders": "streams of one process cannot be stalled alone: half_open and delay strike a node's",
    "remap": "orders of layers come from the leader alone; benchmarks.faults.failover --restless gives them live",
    "reorder": "streams of one process cannot be stalled alone: half_open and delay strike a node's",
    "shed": "orders to migrate come from the leader alone; drains make it give them",
    "tier_full": "a kvstore takes reservations of registered instances alone",
}
"""Kinds of the campaign that cannot be had of real processes here."""
