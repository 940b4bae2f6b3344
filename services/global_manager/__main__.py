"""Starts a global manager: `python -m services.global_manager --help`."""

import argparse
import sys
from collections.abc import Sequence

from dunlin.arguments import Parser
from dunlin.policies.group import GROUP_POLICIES
from dunlin.policies.presets import DEFAULT_PRESET, PRESETS
from dunlin.policies.rebalance import REBALANCE_POLICIES
from dunlin.wire.options import add_service_flags, service_options
from dunlin.wire.process import run_service
from services.global_manager.config import GlobalManagerConfig, of_preset
from services.global_manager.server import serve


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = Parser(
        prog="dunlin serve global_manager",
        description="Groups the instances; the one of several that is elected leads.",
    )
    add_service_flags(flags)
    flags.add_argument("--preset", default=DEFAULT_PRESET, choices=tuple(PRESETS), help="which policies decide")
    flags.add_argument("--group-policy", choices=tuple(GROUP_POLICIES), help="another way to group than the preset's")
    flags.add_argument(
        "--rebalance-policy", choices=tuple(REBALANCE_POLICIES), help="another way to move work than the preset's"
    )
    flags.add_argument(
        "--prefill-share",
        default=GlobalManagerConfig().prefill_share,
        type=float,
        metavar="X",
        help="of the instances, so many compute prompts where the preset splits work (default: %(default)s)",
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    options = service_options("global_manager", arguments)
    chosen = {"policy": arguments.group_policy, "rebalance": arguments.rebalance_policy}
    policies = {point: policy for point, policy in chosen.items() if policy}
    try:
        config = of_preset(arguments.preset, prefill_share=arguments.prefill_share, **policies)
    except ValueError as error:
        flags.error(str(error))
    return run_service(options, lambda: serve(options, config))


if __name__ == "__main__":
    sys.exit(main())
