"""What a kvstore is told at start. Pure."""

from dataclasses import dataclass

from dunlin.messages.exchange import TransferAgent

ALIGNMENTS_BYTES = (64, 4096)
TRANSPORTS = ("auto", "sockets", "nixl")


@dataclass(frozen=True, slots=True)
class KvstoreConfig:
    """Settings of one node's host tier.

    `tier_path` is how an instance of the same node opens the shared memory. `orphan_grace_s` is how long committed
    regions outlive the stream of their writer: for reads under way, and for who claims them. `spill_share` of the room
    is never given to checkpoints. `replicate`: what is committed here is also copied to the kvstore of another node.
    Copies to other nodes that make no progress for `exchange_s` are given up, at most `most_jobs` requests are copied
    at once, and other nodes are waited for `search_s` when they are asked for a request that nobody here knows.
    `transport` is how bytes go there, and `agent` what others are told where they go by one-sided writes.
    """

    tier_path: str
    tier_bytes: int
    node: str = ""
    alignment_bytes: int = 4096
    max_regions: int = 65536
    orphan_grace_s: float = 30.0
    spill_share: float = 0.25
    replicate: bool = False
    exchange_s: float = 5.0
    search_s: float = 0.5
    most_jobs: int = 256
    report_interval_s: float = 0.5
    transport: str = "auto"
    agent: TransferAgent | None = None

    def __post_init__(self) -> None:
        if self.alignment_bytes not in ALIGNMENTS_BYTES:
            raise ValueError(f"alignment of {self.alignment_bytes} bytes: choose one of {ALIGNMENTS_BYTES}")
        if self.tier_bytes < self.alignment_bytes:
            raise ValueError(f"a host tier of {self.tier_bytes} bytes: needs at least {self.alignment_bytes}")
        if not 0 <= self.spill_share <= 1:
            raise ValueError(f"a share of {self.spill_share} for what is preempted: choose 0 to 1")
        if self.transport not in TRANSPORTS:
            raise ValueError(f"no transport is called {self.transport!r}: choose one of {', '.join(TRANSPORTS)}")
        if self.max_regions < 1:
            raise ValueError(f"a catalog of {self.max_regions} regions: needs at least 1")
