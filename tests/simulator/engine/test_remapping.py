"""`Remap` in the modelled engine: between steps, at its price, and what it does to steps and to KV."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.messages.engine import Interrupt, Remap, RemapDone, Step, StepDone, Unsupported
from dunlin.messages.types import RemapPhase, Verdict, i8, i32, i64
from simulator.engine.errors import ContractBroken
from simulator.engine.token_model import continuation
from tests.simulator.engine.engine_bench import Bench, open_of, step_of

FEWER = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)
MORE = (RemapPhase.PREPARE, RemapPhase.LOAD, RemapPhase.COMMIT)
LOWER, UPPER, ALL = i32(range(4)), i32(range(4, 8)), i32(range(8))


def remaps(bench: Bench, kinds: tuple[RemapPhase, ...], layers: Any, layout: int, at_s: float) -> None:
    for number, kind in enumerate(kinds):
        bench.tell(Remap(layout, kind, layers), at_s=at_s + 0.01 * number)


def lower_step(number: int, *rows: tuple[int, int, int], layout: int = 1) -> Step:
    """The step's first four layers; its hidden states go to room 1."""
    return replace(step_of(number, *rows), layer_stop=4, hidden_out=1, layout=layout, sample=i8([0] * len(rows)))


def test_a_phase_takes_effect_between_two_steps() -> None:
    bench = Bench(weights_bytes=4096)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Remap(1, FEWER[0], LOWER), at_s=0.02)
    ((at_s, done),) = bench.of(RemapDone)
    assert (at_s, done.layout, done.phase, len(done.layers)) == (0.08, 1, FEWER[0], 8)


def test_only_the_loading_of_weights_takes_time() -> None:
    bench = Bench(weights_bytes=4096, move_s=0.5)
    remaps(bench, FEWER, LOWER, 1, 0.0)
    remaps(bench, MORE[:2], ALL, 2, 0.1)
    bench.tell(Remap(2, MORE[2], ALL), at_s=0.7)
    times = [round(at_s, 6) for at_s, _ in bench.of(RemapDone)]
    assert times == [0.0, 0.01, 0.02, 0.1, 0.61, 0.7]


def test_a_refused_phase_is_answered_with_its_layout() -> None:
    bench = Bench()
    bench.tell(Remap(7, RemapPhase.LOAD, ALL))
    ((_, refused),) = bench.of(Unsupported)
    assert (refused.what, refused.layout) == ("Remap", 7)


def test_a_step_over_half_of_the_layers_takes_half_of_the_time() -> None:
    bench = Bench(weights_bytes=4096)
    remaps(bench, FEWER, LOWER, 1, 0.0)
    bench.tell(open_of(1), lower_step(1, (1, 0, 10)), at_s=0.1)
    ((at_s, done),) = bench.of(StepDone)
    assert (round(at_s, 6), done.tokens_computed, list(done.token)) == (0.14, 10, [])


def test_a_step_of_another_layout_is_refused_though_it_was_queued_before() -> None:
    bench = Bench(weights_bytes=4096)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)), step_of(2, (1, 10, 11)))
    bench.tell(Remap(1, FEWER[0], LOWER), at_s=0.01)
    bench.tell(Remap(1, FEWER[1], LOWER), at_s=0.1)
    bench.tell(step_of(3, (1, 11, 12)), at_s=0.11)
    assert [done.step for _, done in bench.of(StepDone)] == [1, 2]
    assert [refused.step for _, refused in bench.of(Unsupported)] == [3]


def test_the_layers_of_a_step_in_two_parts_are_those_of_the_whole() -> None:
    bench = Bench()
    upper = replace(step_of(2, (1, 0, 10)), layer_start=4, layer_stop=8, hidden_in=1)
    bench.tell(open_of(1), lower_step(1, (1, 0, 10), layout=0), upper, step_of(3, (1, 10, 11)))
    done = [one for _, one in bench.of(StepDone)]
    assert [list(one.token) for one in done] == [[], *([token] for token in continuation(range(10), 2, seed=1))]


def test_a_step_reads_only_hidden_states_that_were_left_for_it() -> None:
    bench = Bench()
    upper = replace(step_of(2, (1, 0, 10)), layer_start=4, layer_stop=8, hidden_in=2)
    bench.tell(open_of(1), lower_step(1, (1, 0, 10), layout=0), upper)
    with pytest.raises(ContractBroken, match=r"room 2 has no hidden states of rows \[\(1, 0, 10\)\]"):
        bench.run()


def test_kv_of_layers_that_were_dropped_and_came_back_may_not_be_read() -> None:
    bench = Bench(weights_bytes=4096)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    remaps(bench, FEWER, LOWER, 1, 0.1)
    remaps(bench, MORE, ALL, 2, 0.2)
    bench.tell(replace(step_of(2, (1, 10, 11)), layout=2), at_s=1.0)
    with pytest.raises(ContractBroken, match="token 0 holds another's KV"):
        bench.run()


def test_retained_kv_is_there_when_its_layers_come_back() -> None:
    bench = Bench(weights_bytes=4096)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    remaps(bench, (*FEWER[:2], RemapPhase.ABORT), LOWER, 1, 0.1)
    remaps(bench, MORE, ALL, 2, 0.2)
    bench.tell(replace(step_of(2, (1, 10, 11)), layout=2), at_s=1.0)
    assert [done.step for _, done in bench.of(StepDone)] == [1, 2]


def test_slots_beyond_the_coming_capacity_are_gone() -> None:
    bench = Bench(weights_bytes=4096)
    remaps(bench, FEWER, LOWER, 1, 0.0)
    bench.tell(open_of(1), replace(lower_step(1, (1, 0, 9)), extent_start=i64([1500])), at_s=0.1)
    remaps(bench, MORE, ALL, 2, 0.3)
    bench.tell(replace(step_of(2, (1, 9, 10)), layout=2), at_s=1.0)
    with pytest.raises(ContractBroken, match="in a slab of 1024"):
        bench.run()


def test_no_row_is_parked_in_layers_that_go() -> None:
    bench = Bench(weights_bytes=4096)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Interrupt(Verdict.SUSPEND, ticket=1), at_s=0.02)
    remaps(bench, FEWER[:2], LOWER, 1, 0.1)
    with pytest.raises(ContractBroken, match="rows are parked"):
        bench.run()


def test_the_next_engine_says_what_it_maps() -> None:
    bench = Bench(weights_bytes=4096, restart_s=0.5)
    remaps(bench, FEWER, LOWER, 1, 0.0)
    bench.world.run_to(1.5)
    bench.supervisor.crash()
    bench.run()
    ready = bench.supervisor.engine.ready
    assert (list(ready.layers), ready.layout, ready.slots) == (list(LOWER), 1, 2048 + 512)
