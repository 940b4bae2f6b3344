"""The list of watchers: each is there once, checks something, and together they cover the invariants."""

import importlib
import pkgutil
from inspect import isclass

from simulator.campaign import invariants
from simulator.campaign.invariants.catalog import WATCHERS
from simulator.campaign.invariants.watcher import InvariantWatcher

HOOKS = ("before", "after", "sent", "audit", "at_end")


def test_every_watcher_of_the_folder_is_in_the_list_once() -> None:
    defined = set()
    for found in pkgutil.iter_modules(invariants.__path__, f"{invariants.__name__}."):
        members = vars(importlib.import_module(found.name)).values()
        defined |= {one for one in members if isclass(one) and issubclass(one, InvariantWatcher)}
    assert set(WATCHERS) == defined - {InvariantWatcher}
    assert len(WATCHERS) == len(set(WATCHERS))


def test_every_watcher_has_an_invariant_and_a_hook() -> None:
    for watcher in WATCHERS:
        assert any(getattr(watcher, hook) is not getattr(InvariantWatcher, hook) for hook in HOOKS), watcher
        has_deliveries = any(getattr(watcher, hook) is not getattr(InvariantWatcher, hook) for hook in HOOKS[:2])
        assert has_deliveries == bool(watcher.roles), watcher
    found = {watcher.invariant for watcher in WATCHERS}
    assert found == {"I1", "I2", "I3", "I4", "I7", "I8", "I9", "I10", "I11", "I12"}
