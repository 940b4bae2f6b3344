"""`python -m simulator.zoo [BUG…]`: hunt planted bugs; exit code 1 if one is not caught."""

import sys

from simulator.zoo.hunt import hunt


def main(wanted: list[str]) -> int:
    """Hunt; the exit code."""
    results = hunt(wanted, None, lambda line: print(line, flush=True))
    caught = [result for result in results if result.is_caught]
    print(f"{len(caught)} of {len(results)} planted bugs were caught")
    return 0 if len(caught) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
