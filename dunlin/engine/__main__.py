"""Starts one engine process: `python -m dunlin.engine …`, by its instance."""

import sys

from dunlin.engine.options import parse_options


def main() -> int:
    options = parse_options(sys.argv[1:])
    from dunlin.engine.process import run  # after the options were found good: this loads torch

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
