"""What a kvstore's core is told at start, one section per decision. Pure."""

from dataclasses import dataclass

from dunlin.config.common import ReportsConfig
from dunlin.config.fields import check, section, setting
from dunlin.messages.exchange import TransferAgent

ALIGNMENTS_BYTES = (64, 4096)
TRANSPORTS = ("auto", "sockets", "nixl")


@dataclass(frozen=True, slots=True)
class TierConfig:
    """The shared host memory of this node, and its limits."""

    capacity_bytes: int = setting(
        256 << 20,
        "Host memory for KV, taken in full at start; refused unless 256 MiB stay free beyond it. The simulator's "
        "default is --host-gb.",
        unit="bytes",
        least=1,
        why="fits every machine; set it to what the node can spare",
    )
    alignment_bytes: int = setting(
        4096, "Alignment of each region.", unit="bytes", choices=ALIGNMENTS_BYTES, why="a page, as direct copies need"
    )
    max_regions: int = setting(
        65536,
        "Regions in the catalog at most.",
        unit="regions",
        least=1,
        why="a bound for the catalog's memory; 256 MiB of pages are as many",
    )
    spill_share: float = setting(
        0.25,
        "Share of the memory that is never given to checkpoints: it is for preempted and moving sequences.",
        unit="share of the memory",
        least=0,
        most=1,
        why="a preemption without room costs a whole prompt, a missing checkpoint only after a failure",
    )
    orphan_grace_s: float = setting(
        30.0,
        "Committed regions outlive the stream of their writer for so long: for reads under way, and for an instance "
        "that goes on with the request.",
        unit="seconds",
        above=0,
        why="as long as dispatchers and instances wait for each other",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.capacity_bytes < self.alignment_bytes:
            raise ValueError(f"capacity_bytes is {self.capacity_bytes}: needs at least {self.alignment_bytes}")


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """Copies to and from the kvstores of other nodes."""

    replicate: bool = setting(
        False,
        "Whether what is committed here is also copied to the kvstore of another node.",
        why="doubles the memory that checkpoints take",
    )
    transport: str = setting(
        "auto",
        "How bytes go there. `nixl` needs the extra `nodes`, and is neither encrypted nor authenticated; `auto` takes "
        "it where both sides have it and RDMA, and no certificates are given; else `sockets`.",
        choices=TRANSPORTS,
        why="the fastest that is safe",
    )
    stall_timeout_s: float = setting(
        5.0,
        "A copy without progress for so long is given up.",
        unit="seconds",
        above=0,
        why="longer than a network's hiccup",
    )
    search_timeout_s: float = setting(
        0.5,
        "Other nodes are waited for so long when they are asked for a request that is not known here.",
        unit="seconds",
        above=0,
        why="computing a prompt again takes about as long",
    )
    max_jobs: int = setting(
        256,
        "Requests that are copied at once.",
        unit="requests",
        least=1,
        why="more than instances checkpoint at once on one node",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class KvstoreConfig:
    """Settings of one node's kvstore. `tier_path` (how an instance of the node opens the shared memory), `node` and
    `agent` (what others are told where they go by one-sided writes) are its host's to say.
    """

    tier_path: str = ""
    node: str = ""
    agent: TransferAgent | None = None
    tier: TierConfig = section(TierConfig)
    exchange: ExchangeConfig = section(ExchangeConfig)
    reports: ReportsConfig = section(ReportsConfig)
