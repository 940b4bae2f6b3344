"""A request that changes hands at an instance: fed message by message, answered to the letter."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Gone, Joined, sends
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import (
    Adopt,
    Adopted,
    AdoptedElsewhere,
    Cancel,
    Ended,
    NotHeld,
    Place,
    PromptScored,
    Refused,
    Returned,
    Tokens,
)
from dunlin.messages.engine import EngineExited, StepDone
from dunlin.messages.types import FinishReason, PromptScores, SamplingParams, f32, i8, i32, i64
from services.instance.core import DispatcherGraceOver
from tests.services.instance.bench import ENGINE, ME, OTHER, Bench, D, Direct, Dispatcher, done, make_place, of, only
from tests.services.instance.bench import ready_core as make_core

PROMPT = [7, 8, 9]


def place(**overrides: Any) -> Place:
    return make_place(1, **{"known": PROMPT, "key": "req-a-1", "tenant": "t", **overrides})


def adopt(tokens: list[int], **overrides: Any) -> Adopt:
    """What a dispatcher asks whose client has `tokens`."""
    tenant = overrides.get("tenant", "t")
    chain = prefix_hash.chain_of(prefix_hash.chain_root(tenant, ""), tokens, len(tokens))
    values = {"request": 41, "attempt": 1, "key": "req-a-1", "tenant": "t", "length": len(tokens)}
    return Adopt(**{**values, "received": len(tokens) - len(PROMPT), "chain": chain, **overrides})


def running(*tokens: int, **overrides: Any) -> Direct:
    """The request runs for D, and these tokens were generated, one a step."""
    core = make_core()
    core.give(D, place(**overrides))
    for step, token in enumerate(tokens, 1):
        core.give(ENGINE, done(step, (1, token)))
    core.give(OTHER, Joined())
    return core


def test_the_dispatcher_that_has_it_may_ask_for_it_again_and_is_not_told_that_it_lost_it() -> None:
    core = running(70, 71, 72)
    sent = core.give(D, adopt([*PROMPT, 70]))
    adopted = only(Adopted, sent)
    assert (adopted.request, list(adopted.tokens), adopted.finish) == (41, [71, 72], FinishReason.RUNNING)
    assert of(AdoptedElsewhere, sent) == []


def test_the_sequence_is_the_askers_with_the_tokens_that_the_client_lacks() -> None:
    core = running(70, 71, 72)
    sent = core.give(OTHER, adopt([*PROMPT, 70]))
    adopted = only(Adopted, sent)
    assert (adopted.request, adopted.attempt, adopted.key) == (41, 1, "req-a-1")
    assert (list(adopted.tokens), adopted.max_tokens, adopted.finish) == ([71, 72], 8, FinishReason.RUNNING)
    (to, taken), *_ = [(send.to, send.message) for send in sent if isinstance(send.message, AdoptedElsewhere)]
    assert (to, taken.request, taken.attempt, taken.by) == (D, 1, 1, OTHER)
    (batch,) = core.give(ENGINE, done(4, (1, 73)))[:1]
    assert batch.to == OTHER
    assert isinstance(batch.message, Tokens)
    assert (list(batch.message.request), list(batch.message.attempt)) == ([41], [1])
    assert (list(batch.message.position), list(batch.message.token)) == ([6], [73])


def test_the_asker_hears_what_the_sequence_is_suspected_of() -> None:
    core = running(70)
    (sequence,) = core.core.sequences
    sequence.suspicion, sequence.trial_stop = 2, 5
    adopted = only(Adopted, core.give(OTHER, adopt([*PROMPT, 70])))
    assert (adopted.suspicion, adopted.trial_stop) == (2, 5)


def test_the_old_dispatcher_changes_nothing_any_more() -> None:
    core = running(70)
    core.give(OTHER, adopt([*PROMPT, 70]))
    assert of(Ended, core.give(D, Cancel(1, 9))) == [Ended(1, 9)]
    assert core.core.sequences.by_key((OTHER, 41)) is not None
    core.give(D, Gone("killed"))
    assert not [timer for timer in core.timers if isinstance(timer.message, DispatcherGraceOver)]


def test_the_grace_of_the_old_dispatcher_does_not_end_what_was_adopted() -> None:
    core = running(70)
    core.give(D, Gone("killed"))
    (due,) = [timer.message for timer in core.timers if isinstance(timer.message, DispatcherGraceOver)]
    core.give(OTHER, adopt([*PROMPT, 70]))
    core.give(ME, due, 30.0)
    assert core.core.sequences.by_key((OTHER, 41)) is not None
    core.give(OTHER, Gone("killed too"))
    (_, second) = [timer.message for timer in core.timers if isinstance(timer.message, DispatcherGraceOver)]
    core.give(ME, second, 60.0)
    assert len(core.core.sequences) == 1  # its step has not answered
    core.give(ENGINE, done(2, (1, 71)), 60.0)
    core.give(ENGINE, done(3), 60.0)
    assert len(core.core.sequences) == 0


def test_an_answer_that_ended_is_kept_for_the_grace_and_no_longer() -> None:
    core = running(70)
    core.give(D, Gone("killed"))
    core.give(ENGINE, done(2, (1, 71), finish=FinishReason.STOP), 5.0)
    for _ in range(2):  # the adopter may die as well
        adopted = only(Adopted, core.give(OTHER, adopt([*PROMPT, 70]), 34.9))
        assert (list(adopted.tokens), adopted.finish) == ([71], FinishReason.STOP)
    assert only(NotHeld, core.give(OTHER, adopt([*PROMPT, 70]), 35.0)) == NotHeld(41, 1)


def test_a_cancelled_request_cannot_be_adopted() -> None:
    core = running(70)
    core.give(D, Cancel(1, 1))
    assert only(NotHeld, core.give(OTHER, adopt([*PROMPT, 70]))) == NotHeld(41, 1)


def test_only_the_requests_own_client_gets_it() -> None:
    core = running(70, 71)
    wrong = (
        adopt([*PROMPT, 99]),
        adopt([*PROMPT, 70], tenant="u"),
        adopt([*PROMPT, 70], received=2),
        adopt([*PROMPT, 70], received=-1),
        adopt([*PROMPT, 70, 71, 72]),
        adopt([*PROMPT, 70], key="req-a-2"),
        adopt([*PROMPT, 70], key=""),
        adopt([*PROMPT, 70], length=-1),
    )
    for message in wrong:
        sent = core.give(OTHER, message)
        assert [send.message for send in sent if send.to == OTHER] == [NotHeld(41, 1)]
        assert of(AdoptedElsewhere, sent) == []
    assert core.core.sequences.by_key((D, 1)) is not None


def test_only_the_requests_own_client_gets_an_answer_that_ended() -> None:
    core = running(70, max_tokens=2)
    core.give(ENGINE, done(2, (1, 71), finish=FinishReason.LENGTH))
    wrong = (
        adopt([*PROMPT, 99]),
        adopt([*PROMPT, 70], tenant="u"),
        adopt([*PROMPT, 70], received=2),
        adopt([*PROMPT, 70, 71, 72]),
    )
    for message in wrong:
        assert [send.message for send in core.give(OTHER, message)] == [NotHeld(41, 1)]
    assert list(only(Adopted, core.give(OTHER, adopt([*PROMPT, 70]))).tokens) == [71]


def test_a_tenants_own_name_finds_it_and_another_body_is_a_conflict() -> None:
    core = running(70, idempotency="k", digest=b"one")
    asks = adopt(PROMPT, key="", idempotency="k", digest=b"two")
    assert only(NotHeld, core.give(OTHER, asks)) == NotHeld(41, 1, conflict=True)
    asks = adopt(PROMPT, key="", idempotency="k", digest=b"one", tenant="u")
    assert only(NotHeld, core.give(OTHER, asks)) == NotHeld(41, 1)
    adopted = only(Adopted, core.give(OTHER, adopt(PROMPT, key="", idempotency="k", digest=b"one")))
    assert (adopted.key, list(adopted.tokens)) == ("req-a-1", [70])
    core.give(ENGINE, done(2, (1, 71), finish=FinishReason.LENGTH))
    third = Dispatcher(D).address
    asks = adopt(PROMPT, key="", idempotency="k", digest=b"two")
    assert only(NotHeld, core.give(third, asks)) == NotHeld(41, 1, conflict=True)
    adopted = only(Adopted, core.give(third, adopt(PROMPT, key="", idempotency="k", digest=b"one")))
    assert (list(adopted.tokens), adopted.finish) == ([70, 71], FinishReason.LENGTH)


@pytest.mark.parametrize("has_ended", [False, True])
def test_one_name_finds_it_under_the_id_of_another_dispatcher(has_ended: bool) -> None:
    core = running(70, idempotency="n/0", digest=b"d", max_tokens=2)
    if has_ended:
        core.give(ENGINE, done(2, (1, 71), finish=FinishReason.LENGTH))
    named = adopt([*PROMPT, 70], key="req-b-7", idempotency="n/0", digest=b"d")
    adopted = only(Adopted, core.give(OTHER, named))
    assert adopted.key == "req-a-1"
    assert adopted.why is not None
    assert adopted.why.chosen == ("deliver what ended here" if has_ended else "go on under another dispatcher")
    assert of(NotHeld, core.give(OTHER, adopt([*PROMPT, 70], key="req-b-7"))) == [NotHeld(41, 1)]


def test_what_waits_can_be_adopted_and_an_engine_that_dies_gives_it_back_to_the_adopter() -> None:
    core = make_core(scheduler__max_running=1)
    core.give(D, make_place(7, key="req-a-7"))
    core.give(D, place())
    core.give(OTHER, Joined())
    assert list(only(Adopted, core.give(OTHER, adopt(PROMPT))).tokens) == []
    core.give(ENGINE, EngineExited(1, back_in_s=60.0))
    sent = core.give(ENGINE, Gone("exit code 1"))
    assert [(send.to, send.message.request) for send in sent if isinstance(send.message, Returned)] == [
        (D, 7),
        (OTHER, 41),
    ]


def test_log_probabilities_that_are_lost_are_computed_again() -> None:
    core = running(70, 71, sampling=SamplingParams(logprobs=0))
    sent = core.give(OTHER, adopt([*PROMPT, 70]))
    assert (of(NotHeld, sent), len(of(AdoptedElsewhere, sent))) == ([NotHeld(41, 1)], 1)
    core = running(70, 71, sampling=SamplingParams(logprobs=0))
    assert list(only(Adopted, core.give(OTHER, adopt([*PROMPT, 70, 71]))).tokens) == []


def test_log_probabilities_of_the_prompt_that_are_lost_are_computed_again() -> None:
    wanted = SamplingParams(prompt_logprobs=0)
    scores = PromptScores(i64([1]), i32([1]), i32([2]), i32([0]), f32([-1.0, -2.0]), i32([1, 2]))
    for known, is_held in ((1, False), (2, True)):
        core = running(sampling=wanted)
        (said,) = of(PromptScored, core.give(ENGINE, StepDone(1, i64(), i32(), f32(), i8(), scores=scores)))
        assert (said.request, said.attempt, said.start, list(said.logprob)) == (1, 1, 1, [-1.0, -2.0])
        sent = core.give(OTHER, replace(adopt(PROMPT), scored=known))
        assert (len(of(Adopted, sent)), len(of(NotHeld, sent))) == (is_held, not is_held)


def test_a_newer_attempt_is_the_one_that_changes_hands() -> None:
    core = running(70)
    assert of(Refused, core.give(D, place(known=[*PROMPT, 70], attempt=2, prompt_tokens=3))) == []
    core.give(OTHER, adopt([*PROMPT, 70]))
    assert core.core.sequences.by_key((D, 1)) is None
    held = core.core.sequences.by_key((OTHER, 41))
    assert held is not None
    assert list(held.place.tokens) == [*PROMPT, 70]


def test_answers_kept_are_bounded_by_number_and_tokens() -> None:
    for settings in ({"retention__max_answers": 3}, {"retention__max_answer_tokens": 3 * 18}):
        bench = Bench(**settings)  # type: ignore[arg-type]
        for request in range(1, 7):
            bench.place(request, key=f"req-a-{request}")
        bench.run_until_quiet()
        finished_answers = bench.core._engine_client._finished_answers
        assert (len(finished_answers), finished_answers.tokens) == (3, 3 * 18)


def test_a_preempted_sequence_says_so_to_its_new_dispatcher() -> None:
    bench = Bench(engine={"slots": 64}, scheduler__allocate_ahead_tokens=4)
    for request in (1, 2, 3):
        bench.place(request, tokens=10, max_tokens=40, key=f"req-a-{request}")
    assert bench.world.run(lambda: any(s.preempted for s in bench.core.sequences.waiting()), for_s=10.0)
    waiting = next(s for s in bench.core.sequences.waiting() if s.preempted)
    known = list(waiting.place.tokens)
    asks = adopt(known, key=waiting.place.key, tenant="", received=0)
    answers = sends(bench.core.receive(bench.world.now_s, OTHER, asks))
    kinds = [type(send.message).__name__ for send in answers[:3]]
    assert kinds == ["AdoptedElsewhere", "Adopted", "Preempted"]
