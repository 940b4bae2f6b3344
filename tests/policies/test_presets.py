"""Presets name policies that exist."""

from dataclasses import fields

import pytest

from dunlin.policies.admit import ADMIT_POLICIES
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.by_length import POOL_POLICIES, QUEUE_POLICIES
from dunlin.policies.dispatch import DISPATCH_POLICIES
from dunlin.policies.groups.group import GROUP_POLICIES, GROUPS_OF_SEVERAL
from dunlin.policies.groups.long_requests import LONG_POLICIES
from dunlin.policies.handoff import HANDOFF_POLICIES
from dunlin.policies.interrupt import INTERRUPT_POLICIES
from dunlin.policies.preemption import PREEMPTION_MODES
from dunlin.policies.presets import DEFAULT_PRESET, PRESETS, SETTING_OF, Preset, preset_settings
from dunlin.policies.rebalance import REBALANCE_POLICIES
from dunlin.policies.victim import VICTIM_POLICIES

CHUNKED = {
    "dispatch": "prefix_affinity",
    "batch": "chunked",
    "victim": "youngest",
    "group": "local_groups",
    "rebalance": "none",
    "preemption": "spill",
    "admit": "all",
    "handoff": "none",
    "interrupt": "never",
    "overtake": "never",
    "long": "refuse",
    "queue": "arrival",
    "pool": "shared",
}


def test_the_default_is_the_one_that_shares_instances_and_chunked_the_plain_one() -> None:
    assert DEFAULT_PRESET == "unified"
    assert PRESETS["chunked"] == Preset(**CHUNKED)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_names_policies_of_the_tables(name: str) -> None:
    preset = PRESETS[name]
    assert preset.dispatch in DISPATCH_POLICIES
    assert preset.batch in BATCH_POLICIES
    assert preset.victim in VICTIM_POLICIES
    assert preset.group in GROUP_POLICIES
    assert preset.rebalance in REBALANCE_POLICIES
    assert preset.preemption in PREEMPTION_MODES
    assert preset.admit in ADMIT_POLICIES
    assert preset.interrupt in INTERRUPT_POLICIES
    assert preset.handoff in HANDOFF_POLICIES
    assert preset.long in LONG_POLICIES
    assert preset.queue in QUEUE_POLICIES
    assert preset.pool in POOL_POLICIES
    assert (preset.group in GROUPS_OF_SEVERAL) is (preset.long == "group"), "who is asked for groups forms them"
    assert (preset.group == "prefill_decode") is (preset.handoff != "none"), "who splits work hands it over"


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("vllm", {"batch": "prefill_first", "preemption": "recompute", "rebalance": "none"}),
        ("fifo", {"dispatch": "fewest_tokens", "batch": "prefill_first", "preemption": "recompute"}),
        ("priority", {"dispatch": "fewest_tokens", "batch": "prefill_first", "queue": "short_first", "pool": "shared"}),
        ("reservation", {"dispatch": "fewest_tokens", "batch": "prefill_first", "pool": "by_length"}),
        ("round_robin", {"dispatch": "round_robin", "batch": "chunked"}),
        ("shortest_queue", {"dispatch": "fewest_requests", "batch": "chunked"}),
        ("online_only", {"admit": "interactive_only", "batch": "chunked"}),
        ("conserve", {"batch": "slo_aware", "victim": "batch_first", "interrupt": "on_arrival"}),
        ("unified", {"batch": "harvest", "victim": "batch_first", "interrupt": "recall_rows", "group": "elastic"}),
        ("vllm++", {"batch": "chunked", "preemption": "swap", "victim": "youngest", "interrupt": "never"}),
        ("llumnix", {"dispatch": "llumnix", "rebalance": "llumnix"}),
        ("distserve", {"dispatch": "fewest_tokens", "group": "prefill_decode", "handoff": "most_room"}),
    ],
)
def test_a_preset_is_what_its_name_says(name: str, choices: dict[str, str]) -> None:
    assert {point: getattr(PRESETS[name], point) for point in choices} == choices


@pytest.mark.parametrize("point", [field.name for field in fields(Preset)])
def test_an_unknown_policy_is_refused_with_the_choices(point: str) -> None:
    with pytest.raises(ValueError, match=rf"no {point} policy 'nonesuch': choose one of .*{CHUNKED[point]}"):
        Preset(**{**CHUNKED, point: "nonesuch"})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_it_sets(name: str) -> None:
    chosen = {point.name: getattr(PRESETS[name], point.name) for point in fields(Preset)}
    assert {setting: chosen[point] for point, setting in SETTING_OF.items()} == preset_settings(name)
    assert SETTING_OF.keys() == chosen.keys()
    roles = {setting.partition(".")[0] for setting in SETTING_OF.values()}
    within = {f"{role}.{rest}": policy for role in roles for rest, policy in preset_settings(name, role).items()}
    assert within == preset_settings(name)


def test_no_preset_is_told_which_there_are() -> None:
    with pytest.raises(ValueError, match="no preset 'best': choose one of chunked"):
        preset_settings("best")
