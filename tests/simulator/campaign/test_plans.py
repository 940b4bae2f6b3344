"""Plans draw every kind of fault, phases to wait for, and requests that continue answers."""

from simulator.campaign.faults.catalog import fault_kinds
from simulator.campaign.long_prompts import elastic_part
from simulator.campaign.plans import RESTLESS_KINDS
from simulator.campaign.runner import plan_of, restless_part
from simulator.engine.token_model import continuation


def test_every_fault_is_planned_by_some_seed() -> None:
    plans = [restless_part(plan_of(seed)) for seed in range(60)]
    planned = {fault.kind for plan in plans for fault in plan.faults}
    assert planned == set(fault_kinds()), sorted(set(fault_kinds()) - planned)


def test_some_faults_take_aim_and_some_clients_go_on_from_what_they_were_answered() -> None:
    plans = [plan_of(seed) for seed in range(40)]
    aims = {fault.aim for plan in plans for fault in plan.faults}
    assert {"", "spilling", "receiving", "copying", "queued"} <= aims
    again = 0
    for plan in plans:
        texts = {(*ask.tokens, *continuation(ask.tokens, 1, ask.number)) for ask in plan.requests}
        again += sum(ask.tokens[:length] in texts for ask in plan.requests for length in range(len(ask.tokens)))
    assert again > 15


def test_a_restless_part_keeps_the_plan_and_has_more_faults_of_its_own() -> None:
    more = set()
    for plan in map(plan_of, range(40)):
        part = restless_part(plan)
        assert part == restless_part(plan)
        assert (part.shape.interrupts, part.shape.rebalance) == ("restless", "restless")
        assert (part.requests, part.faults[: len(plan.faults)]) == (plan.requests, plan.faults)
        assert len({fault.number for fault in part.faults}) == len(part.faults)
        more |= {fault.kind for fault in part.faults[len(plan.faults) :]}
    assert more == set(RESTLESS_KINDS)


def test_an_elastic_part_keeps_the_plan_and_has_prompts_that_only_a_group_holds() -> None:
    lengths, presets = [], set()
    for plan in map(plan_of, range(40)):
        part = elastic_part(plan)
        assert part == elastic_part(plan)
        assert part.faults == plan.faults
        presets.add(part.shape.preset)
        assert part.shape.instances >= 2 * part.shape.nodes
        pool = part.shape.slots * (part.shape.instances // part.shape.nodes)
        assert all(len(ask.tokens) + ask.max_tokens <= pool for ask in part.requests)
        pairs = zip(part.requests, plan.requests, strict=True)
        assert all(ask.tokens[-len(before.tokens) :] == before.tokens for ask, before in pairs)
        lengths += [len(ask.tokens) / part.shape.slots for ask in part.requests]
    assert presets == {"elastic", "loongserve", "unified"}
    long = [length for length in lengths if length > 1]
    assert 0.1 < len(long) / len(lengths) < 0.4
    assert min(long) < 1.3
    assert max(long) > 2.7
