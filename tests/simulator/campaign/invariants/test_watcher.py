"""The base class of the watchers: hooks that check nothing, and the violation that a watcher raises."""

from dunlin.effects import Gone
from simulator.campaign.invariants.watcher import InvariantWatcher
from tests.simulator.campaign.campaign_bench import Campaign


class Slept(InvariantWatcher):
    invariant = "I9"


def test_a_watcher_without_hooks_finds_nothing() -> None:
    campaign = Campaign()
    watcher = InvariantWatcher(campaign.cluster, campaign.clients, campaign.faults)
    event = campaign.event(campaign.address("monitor"), campaign.address("dispatcher"), Gone())
    watcher.before(event)
    watcher.after(event)
    watcher.sent(1.0, event.sender, event.to, event.message)
    watcher.audit()
    watcher.at_end()


def test_a_violation_names_the_invariant_the_time_and_the_objects() -> None:
    campaign = Campaign()
    campaign.world.run_to(7.5)
    watcher = Slept(campaign.cluster, campaign.clients, campaign.faults)
    own, other = watcher.fail("it slept"), watcher.fail("it lost slots", "I8")
    assert (own.invariant, own.at_s, own.text) == ("I9", 7.5, "it slept")
    assert str(own) == "I9 at 7.500000 s: it slept"
    assert (other.invariant, str(other)) == ("I8", "I8 at 7.500000 s: it lost slots")


def test_what_a_watcher_excuses_is_counted_by_its_reason() -> None:
    campaign = Campaign()
    watcher = Slept(campaign.cluster, campaign.clients, campaign.faults)
    for reason, invariant in (("it slept", ""), ("it slept", ""), ("so did the other", "I8")):
        watcher.excuse(reason, invariant)
    assert watcher.excused == {"I9 it slept": 2, "I8 so did the other": 1}
