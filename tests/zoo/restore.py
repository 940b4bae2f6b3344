"""Finds anew the seeds that catch planted bugs, and notes them there (`python -m tests.zoo --restore`).

Seeds mean other runs whenever plans, faults or the world change. A seed that still catches its bug stays; with
`--lighter`, only until one of the next catches it in fewer events.
"""

import re
from collections.abc import Callable
from pathlib import Path

from tests.zoo.hunt import BUGS, search
from tests.zoo.plant import Bug

HERE = Path(__file__).parent
STRIDE = 7
"""Bugs begin at different seeds, so that the zoo is not all of one kind of run."""


def restore(
    wanted: list[str], first_seed: int, most: int, say: Callable[[str], object], *, lighter: bool = False
) -> list[str]:
    """Hunt the wanted bugs, or all of them, and note the seed of each; the names of those that were not caught.

    `lighter`: all `most` seeds are tried, and the one of the fewest events is noted.
    """
    missing = []
    for index, bug in enumerate(BUGS):
        if wanted and bug.name not in wanted:
            continue
        seed = (_lightest if lighter else _found)(bug, first_seed + STRIDE * index, most)
        say(f"{bug.name}: {bug.seed if seed == bug.seed else f'{bug.seed} -> {seed}'}")
        if seed is None:
            missing.append(bug.name)
        elif seed != bug.seed:
            write(bug.name, seed)
    return missing


def write(name: str, seed: int, folder: Path = HERE) -> None:
    """Note the seed beside the bug.

    Raises:
        LookupError: no file has that bug.
    """
    for path in sorted(folder.glob("bugs_*.py")):
        source = path.read_text()
        begin = source.find(f'        "{name}",\n')
        if begin < 0:
            continue
        end = source.index("\n    ),\n", begin) + 1
        entry = re.sub(r"        seed=\d+,\n", "", source[begin:end]) + f"        seed={seed},\n"
        path.write_text(source[:begin] + entry + source[end:])
        return
    raise LookupError(f"no file in {folder} has a bug {name!r}")


def _lightest(bug: Bug, first_seed: int, most: int) -> int | None:
    """Of the old seed and the next, the one that catches it in the fewest events and is clean without it."""
    own = [search(bug, bug.seed, 1)] if bug.seed else []
    results = own + [search(bug, seed, 1) for seed in range(first_seed, first_seed + most)]
    caught = [result for result in results if result.is_caught]
    return min(caught, key=lambda result: result.events).seed if caught else None


def _found(bug: Bug, first_seed: int, most: int) -> int | None:
    """The first seed that catches it and is clean without it: the old one, if it does."""
    if bug.seed and search(bug, bug.seed, 1).is_caught:
        return bug.seed
    until = first_seed + most
    while first_seed < until:
        result = search(bug, first_seed, until - first_seed)
        if result.is_caught:
            return result.seed
        first_seed = result.seed + 1  # caught there, but not clean without the bug: go on behind it
    return None
