"""Token messages: one per dispatcher and step, each row with its own log-probabilities."""

from dunlin.effects import Address, Send
from dunlin.messages.dispatch import (
    Tokens,
)
from dunlin.messages.engine import (
    StepDone,
)
from dunlin.messages.types import F32, I8, I32, f32, i8, i32, i64
from services.instance.scheduling.step_outcome import StepOutcome
from services.instance.scheduling.token_messages import token_messages
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import (
    ENGINE,
    OTHER,
    Bench,
    D,
    make_place,
    only,
    ready_core,
)


def test_top_logprobs_reach_their_own_row() -> None:
    direct = ready_core()
    direct.give(D, make_place(1, max_tokens=1))
    direct.give(D, make_place(2))
    answer = StepDone(
        1,
        i64([1]),
        i32([5]),
        f32([-1.0]),
        i8([2]),
        top_count=i32([2]),
        top_token=i32([5, 6]),
        top_logprob=f32([-1, -2]),
    )
    tokens = only(Tokens, direct.give(ENGINE, answer))
    assert (list(tokens.top_count), list(tokens.top_token), list(tokens.top_logprob)) == ([2], [5, 6], [-1.0, -2.0])


def test_each_dispatcher_gets_one_message_per_step() -> None:
    bench = Bench()
    other = bench.add_dispatcher("e")
    bench.run(0.01)
    for request in (1, 2, 3):
        bench.place(request)
        bench.place(request, by=other)
    bench.run_until_quiet()
    bench.check_empty()
    for dispatcher in (bench.dispatcher, other):
        assert len(dispatcher.of(Tokens)) <= len(bench.engine.steps)
        assert all(attempt.tokens == attempt.expected for attempt in dispatcher.attempts.values())


def outcome(*rows: tuple[int, Address, SequenceState], tops: bool = False) -> StepOutcome:
    """A step's answer: row i is of this request, dispatcher and state, with token 50 + i and, if wanted, i tops."""
    table, sampled = SequenceTable(), []
    for request, dispatcher, state in rows:
        sequence = table.add(dispatcher, make_place(request, tokens=4, attempt=request + 1))
        sequence.state = state
        sequence.tokens.append(9)
        sampled.append(sequence)
    count = len(rows)
    columns = (i32(range(50, 50 + count)), f32([-0.5 * number for number in range(count)]), i8([0] * count))
    top_tokens = [10 * number + top for number in range(count) for top in range(number)] if tops else []
    done = StepDone(
        1,
        i64(range(count)),
        *columns,
        top_count=i32(range(count)) if tops else i32(),
        top_token=i32(top_tokens),
        top_logprob=f32([0.5] * len(top_tokens)),
    )
    return StepOutcome(done, sampled, sampled, range(count), {}, {})


def test_a_step_of_one_dispatcher_passes_the_columns_on() -> None:
    running = SequenceState.RUNNING
    answer = outcome((1, D, running), (2, D, running))
    (effect,) = token_messages(answer)
    assert isinstance(effect, Send)
    assert effect == Send(D, Tokens(i64([1, 2]), i32([2, 3]), i64([4, 4]), *columns_of(answer.done)))


def columns_of(done: StepDone) -> tuple[I32, F32, I8]:
    return done.token, done.logprob, done.finish


def test_each_dispatcher_gets_its_own_rows_and_tops() -> None:
    running = SequenceState.RUNNING
    effects = token_messages(outcome((1, OTHER, running), (2, D, running), (3, OTHER, running), tops=True))
    found = {one.to: one.message for one in effects if isinstance(one, Send)}
    assert list(found) == [OTHER, D]
    theirs, mine = found[OTHER], found[D]
    assert isinstance(theirs, Tokens)
    assert isinstance(mine, Tokens)
    assert (list(theirs.request), list(theirs.token), list(theirs.logprob)) == ([1, 3], [50, 52], [0.0, -1.0])
    assert (list(theirs.top_count), list(theirs.top_token)) == ([0, 2], [20, 21])
    assert (list(mine.request), list(mine.token), list(mine.top_count), list(mine.top_token)) == ([2], [51], [1], [10])


def test_a_sequence_that_is_ending_yields_no_token() -> None:
    rows = ((1, D, SequenceState.ENDING), (2, D, SequenceState.LEAVING), (3, D, SequenceState.ENDING))
    (effect,) = token_messages(outcome(*rows))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Tokens)
    assert (list(effect.message.request), list(effect.message.token)) == ([2], [51])
    assert token_messages(outcome((1, D, SequenceState.ENDING))) == []
    assert token_messages(outcome()) == []
