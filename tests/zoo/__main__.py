"""`python -m tests.zoo [BUG…]`: hunt planted bugs; exit code 1 if one is not caught.

With `--restore` their seeds are found anew where they do not catch them any more, and noted beside them; with
`--lighter` too, also where another one catches them sooner.
"""

import argparse
import sys

from tests.zoo.hunt import hunt
from tests.zoo.restore import restore

FIRST_SEED = 100_000
MOST_SEEDS = 1000


def main(words: list[str]) -> int:
    """Hunt; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="these bugs alone")
    parser.add_argument("--restore", action="store_true", help="find seeds anew and write them beside the bugs")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, metavar="K", help="where --restore begins")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, metavar="N", help="the most that --restore tries")
    parser.add_argument("--lighter", action="store_true", help="with --restore: try all, keep the one of fewest events")
    arguments = parser.parse_args(words)
    if arguments.restore:
        first, most = arguments.first_seed, arguments.seeds
        missing = restore(arguments.bugs, first, most, lambda line: print(line, flush=True), lighter=arguments.lighter)
        print(f"no seed found: {', '.join(missing) or 'none'}")
        return 1 if missing else 0
    results = hunt(arguments.bugs, None, lambda line: print(line, flush=True))
    caught = [result for result in results if result.is_caught]
    print(f"{len(caught)} of {len(results)} planted bugs were caught")
    return 0 if len(caught) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
