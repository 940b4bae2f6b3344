"""Starts one engine process: `python -m dunlin.engine …`, by its instance."""

import importlib
import sys

from dunlin.engine.process.background import run_at_low_priority
from dunlin.engine.process.options import parse_options


def main() -> int:
    options = parse_options(sys.argv[1:])
    if options.standby:  # seconds of work, beside an engine that serves
        run_at_low_priority(lambda: importlib.import_module("dunlin.engine.process.main"))
    from dunlin.engine.process.main import run  # after the options were found good: this loads torch

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
