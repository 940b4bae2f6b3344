"""Starts one engine process: `python -m dunlin.engine …`, by its instance."""

import sys
from typing import Any

from dunlin.engine.process.background import run_at_low_priority
from dunlin.engine.process.options import CANNOT_START, parse_options
from dunlin.engine.ranks.processes import RankProcesses
from dunlin.runtime.frozen_import import import_frozen
from dunlin.runtime.parent_death import ParentGone, die_with_parent


def main() -> int:
    options = parse_options(sys.argv[1:])
    try:
        die_with_parent(options.parent_pid)  # first of all: to load torch takes seconds, on a busy machine minutes
    except ParentGone as error:
        print(f"dunlin engine {options.name}: {error}", file=sys.stderr)
        return CANNOT_START
    others = RankProcesses(options) if options.ranks > 1 and not options.rank else None
    if options.standby:  # seconds of work, beside an engine that serves
        run_at_low_priority(_import_all)
    return int(_import_all().run(options, others))


def _import_all() -> Any:
    """Load torch and all else that an engine needs."""
    return import_frozen("dunlin.engine.process.main")


if __name__ == "__main__":
    sys.exit(main())
