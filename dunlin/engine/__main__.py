"""Starts one engine process: `python -m dunlin.engine …`, by its instance."""

import importlib
import sys

from dunlin.engine.background import in_background
from dunlin.engine.options import parse_options


def main() -> int:
    options = parse_options(sys.argv[1:])
    if options.standby:  # seconds of work, beside an engine that serves
        in_background(lambda: importlib.import_module("dunlin.engine.process"))
    from dunlin.engine.process import run  # after the options were found good: this loads torch

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
