"""Each kind that a live run strikes has its action, and nothing else has."""

from benchmarks.faults.chaos.injector import GROUPS, kinds_of
from benchmarks.faults.chaos.kinds import LIVE_KINDS


def test_the_kinds_are_the_actions() -> None:
    assert sorted(kind for group in GROUPS for kind in kinds_of(group)) == list(LIVE_KINDS)
