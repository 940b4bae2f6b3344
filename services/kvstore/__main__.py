"""Starts a kvstore: `python -m services.kvstore --help`."""

import argparse
import sys
from collections.abc import Sequence

from dunlin.arguments import Parser
from dunlin.wire.options import add_service_flags, service_options
from dunlin.wire.process import run_service
from services.kvstore.config import ALIGNMENTS_BYTES, TRANSPORTS, KvstoreConfig
from services.kvstore.server import serve

DEFAULT_TIER_BYTES = 256 << 20


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = Parser(
        prog="dunlin serve kvstore", description="The host-memory tier of one node's KV pool, and its catalog."
    )
    add_service_flags(flags)
    flags.add_argument(
        "--tier-bytes",
        "--host-tier-bytes",
        dest="tier_bytes",
        type=int,
        default=DEFAULT_TIER_BYTES,
        help=f"shared memory to keep regions in, filled at start (default: {DEFAULT_TIER_BYTES})",
    )
    flags.add_argument("--alignment-bytes", type=int, default=4096, choices=ALIGNMENTS_BYTES, help="of each region")
    flags.add_argument(
        "--orphan-grace-s", type=float, default=30.0, help="how long regions outlive their writer's stream"
    )
    flags.add_argument(
        "--replicate", action="store_true", help="keep a second copy of everything at another node's kvstore"
    )
    flags.add_argument(
        "--transport",
        choices=TRANSPORTS,
        default="auto",
        help="how regions go to other nodes: nixl needs the extra `nodes`, and is neither encrypted nor authenticated; "
        "auto takes it where both sides have it and RDMA, and no --tls-dir is given (default: auto)",
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    try:
        config = KvstoreConfig(
            "",
            arguments.tier_bytes,
            "",
            arguments.alignment_bytes,
            orphan_grace_s=arguments.orphan_grace_s,
            replicate=arguments.replicate,
            transport=arguments.transport,
        )
    except ValueError as error:
        flags.error(str(error))
    options = service_options("kvstore", arguments)
    return run_service(options, lambda: serve(options, config))


if __name__ == "__main__":
    sys.exit(main())
