"""`python -m dunlin.engine.remote`; an instance starts it."""

import sys

from dunlin.engine.remote.main import run
from dunlin.engine.remote.options import parse_options

if __name__ == "__main__":
    sys.exit(run(parse_options(sys.argv[1:])))
