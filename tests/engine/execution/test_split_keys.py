"""Rows whose keys lie at several engines: queries go there and partial results come back, or stripes go round."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dunlin.messages.engine import Close, Forget, Interrupted, Met, StepDone, Unsupported
from dunlin.messages.types import GroupKind, Keep, i8, i32, i64
from tests.engine.attention.reference import backend_named
from tests.engine.build import make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.interrupting import interrupt
from tests.engine.execution.members import (
    SAMPLING,
    Member,
    columns_of,
    cut_at_random,
    group,
    keep,
    meet_all,
    no_rows,
    peer_index,
    run_all,
    serve,
    span_columns,
    whole_text,
)

LAYERS = 2
TEXT = [(7 * at * at + 3 * at + 11) % 500 for at in range(1100)]
CHUNK = 20
"""Tokens of the text that the first split step computes."""
STEPS = 4
Make = Callable[..., list[Member]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=2, layers=LAYERS)


@pytest.fixture(params=["deterministic", "torch", "paged"])
def mode(request: pytest.FixtureRequest) -> str:
    if request.param == "paged":
        backend_named("paged")
    return str(request.param)


def agree(found: list[tuple[int, float]], expected: list[tuple[int, float]], mode: str) -> bool:
    """The same bits in the deterministic mode; else the same tokens, as likely."""
    if mode == "deterministic":
        return found == expected
    near = all(abs(a - b) <= 1e-4 for (_, a), (_, b) in zip(found, expected, strict=True))
    return near and [token for token, _ in found] == [token for token, _ in expected]


def samples(event: Any) -> list[tuple[int, float]]:
    assert isinstance(event, StepDone), event
    return list(zip(event.token, event.logprob, strict=True))


def spread(master: Member, holder: Member, pieces: list[tuple[int, int, int]]) -> None:
    """Leave each token's KV where its piece says, in slot = position; elsewhere is no number. 1 is the holder."""
    for start, stop, who in pieces:
        (holder if who == 0 else master).poison(range(start, stop))
    length = pieces[-1][1]
    for each in (master, holder):
        each.poison(range(length, length + CHUNK + STEPS))
    starts, lengths = [start if who == 0 else -1 for start, _, who in pieces], [b - a for a, b, _ in pieces]
    extents = {"extent_start": i64(starts), "extent_length": i64(lengths)}
    master.tell(make_open(1, TEXT, sampling=SAMPLING, max_tokens=STEPS + 1, **extents))


def split_step(master: Member, holder: Member, number: int, row: tuple[int, int], pieces: Any) -> None:
    """Tokens `row` of sequence 1 at the master, and what the holder answers for it."""
    there = [(start, stop) for start, stop, who in pieces if who == 1]
    both = [master, holder]
    spans = span_columns([(0, (start, stop, 1, 0)) for start, stop in there])
    step = make_step(number, (1, *row, row[0]), **spans, **group(master, both, GroupKind.MASTERS, 70 + number))
    part = serve(0, [(1, *row, [(start, stop, start) for start, stop in there])])
    master.tell(step)
    holder.tell(no_rows(number + 50, serve=part, **group(holder, both, GroupKind.MASTERS, 70 + number)))


@pytest.mark.parametrize("seed", range(4))
def test_keys_split_at_random_give_the_tokens_of_one_engine(directory: Path, mode: str, seed: int) -> None:
    """A chunk of a prompt, then decode rows; the room is smaller than the chunk's queries."""
    check_split(directory, mode, seed)


def test_windows_and_caps_reach_across_engines(tmp_path: Path, mode: str) -> None:
    """Windows are shorter than what lies elsewhere, and longer than what lies here."""
    options = {"sliding_window": 600, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 5}
    check_split(make_checkpoint(tmp_path, "gemma2", seed=2, layers=LAYERS, options=options), mode, 1)


def check_split(directory: Path, mode: str, seed: int) -> None:
    """The tokens of one engine, when keys lie at two."""
    master, holder = meet_all([Member(number, directory, mode, room_bytes=1 << 12) for number in range(2)])
    length = len(TEXT) - CHUNK
    expected = whole_text(master, TEXT, STEPS, 0)
    assert whole_text(holder, TEXT, STEPS, 0) == expected
    pieces = cut_at_random(length, 2, seed)
    pieces = [*pieces[:-1], (*pieces[-1][:2], 1)]  # some lie elsewhere
    spread(master, holder, pieces)
    found = []
    for number in range(STEPS):
        at = len(TEXT) + number - 1
        split_step(master, holder, number + 1, (at, at + 1) if number else (length, len(TEXT)), pieces)
        run_all([master, holder])
        (done,) = master.answers()
        found += samples(done)
        (served,) = holder.answers()
        assert (list(served.sequence), served.tokens_computed) == ([], 0)
    assert agree(found, expected, mode)


def test_a_master_holds_keys_for_another_in_the_same_step(directory: Path, mode: str) -> None:
    """Each of two members is master of one sequence and has the first half of the other's keys; a local row rides."""
    members = meet_all([Member(number, directory, mode) for number in range(2)])
    texts = [TEXT[:600], TEXT[300:900]]
    expected = [whole_text(members[0], text, 2, 1000 * number) for number, text in enumerate(texts)]
    assert [whole_text(members[1], text, 2, 1000 * number) for number, text in enumerate(texts)] == expected
    for each in members:
        own, other = each.number, 1 - each.number
        each.poison(range(1000 * own, 1000 * own + 300))
        each.poison(range(1000 * other + 300, 1000 * other + 700))
        extents = {"extent_start": i64([-1, 1000 * own + 300]), "extent_length": i64([300, 299])}
        each.tell(
            make_open(own + 1, texts[own], sampling=SAMPLING, **extents), make_open(3, [5, 6, 7], sampling=SAMPLING)
        )
    found: list[list[tuple[int, float]]] = [[], []]
    for number in range(2):
        for each in members:
            own, other = each.number, 1 - each.number
            at = 599 + number
            local = (3, 0, 3, 3000) if not number else (3, 3, 4, 3003)
            spans = span_columns([(1, (0, 300, 1, 0))])
            part = serve(0, [(other + 1, at, at + 1, [(0, 300, 1000 * other)])])
            group_columns = group(each, members, GroupKind.MASTERS, 70 + number)
            rows = (local, (own + 1, at, at + 1, 1000 * own + at))
            each.tell(make_step(number + 1, *rows, serve=part, **spans, **group_columns))
        run_all(members)
        for each in members:
            (done,) = each.answers()
            found[each.number].append(samples(done)[1])
    assert all(agree(*pair, mode) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("count", [2, 3])
def test_a_striped_ring_gives_the_tokens_of_one_engine(directory: Path, mode: str, count: int) -> None:
    """Two chunks of a prompt go round; what each member keeps is in one piece, and decoding goes on over those."""
    members = meet_all([Member(number, directory, mode) for number in range(count)])
    text = TEXT[:700]
    expected = whole_text(members[0], text, 3, 0)
    cuts = [0, *(200 + 150 * number for number in range(1, count)), 700]
    for each in members:
        each.poison(range(each.loaded.slots))
        each.tell(make_open(1, text, sampling=SAMPLING, max_tokens=4))
        stripes = [(other, 700, count, peer_index(each, other)) for other in range(count) if other != each.number]
        kept = keep(0, LAYERS, cuts[each.number], cuts[each.number + 1], 50)
        row = (1, each.number, 700, 2000)
        is_last = 699 % count == each.number
        columns = {**span_columns([(0, stripe) for stripe in stripes]), **group(each, members, GroupKind.RING, 9)}
        each.tell(make_step(1, row, sample=[is_last], stride=i64([count]), keep=kept, **columns))
    run_all(members)
    answers = [each.answers()[0] for each in members]
    master = members[699 % count]
    found = samples(answers[master.number])
    assert sum(done.tokens_computed for done in answers) == 700
    for each in members:
        each.poison(range(2000, 2700))  # the stripes' own slots are free again
    spans = [(0, (cuts[o], cuts[o + 1], 1, peer_index(master, o))) for o in range(count) if o != master.number]
    for number in range(2):
        at = 700 + number
        columns = {**span_columns(spans), **group(master, members, GroupKind.MASTERS, 20 + number)}
        master.tell(make_step(2 + number, (1, at, at + 1, 1000 + number), **columns))
        for each in members:
            if each is not master:
                own = [(cuts[each.number], cuts[each.number + 1], 50)]
                part = serve(0, [(1, at, at + 1, own)])
                two = [each, master]
                each.tell(no_rows(2 + number, serve=part, **group(each, two, GroupKind.MASTERS, 20 + number)))
        run_all(members)
        found += samples(master.answers()[0])
        [each.answers() for each in members]
    assert agree(found, expected, mode)
    master.tell(make_step(9, (1, 702, 703, 1002)))
    master.events += master.runner.work(lambda: None)
    assert "do not all lie here" in master.answers()[0].detail


def test_a_step_that_waits_for_a_peer_can_be_interrupted(directory: Path) -> None:
    master, holder = meet_all([Member(number, directory, "deterministic") for number in range(2)])
    length = len(TEXT) - CHUNK
    for each in (master, holder):
        whole_text(each, TEXT, STEPS, 0)
    pieces = [(0, 512, 1), (512, length, 0)]
    spread(master, holder, pieces)
    split_step(master, holder, 1, (length, len(TEXT)), pieces)
    for _ in range(200):
        master.events += master.runner.work(lambda: None)
    assert master.runner.is_waiting
    assert master.answers() == []
    master.tell(interrupt())  # to suspend: but a row that others compute for cannot come back alone
    for _ in range(3):
        master.events += master.runner.work(lambda: None)
    left, done = master.answers()
    assert isinstance(left, Interrupted)
    assert (list(left.sequence), list(left.parked), list(done.left)) == ([1], [0], [1])
    run_all([holder])  # it was not asked, and need not wait
    assert isinstance(holder.answers()[0], StepDone)
    split_step(master, holder, 5, (length, len(TEXT)), pieces)
    for _ in range(200):
        holder.events += holder.runner.work(lambda: None)
    assert holder.runner.is_waiting
    holder.tell(interrupt())
    holder.events += holder.runner.work(lambda: None)
    left, done = holder.answers()
    assert (list(left.sequence), list(done.left), holder.runner.busy) == ([], [], False)
    run_all([master])  # its row cannot be computed without the holder
    (done,) = master.answers()
    assert (list(done.sequence), list(done.left)) == ([], [1])
    split_step(master, holder, 2, (length, len(TEXT)), pieces)  # what was left in the rooms is not read
    run_all([master, holder])
    assert samples(master.answers()[0])


def two_split_rows(directory: Path, mode: str) -> tuple[Member, Member, list[list[tuple[int, float]]], Any]:
    """Sequences 1 and 2 with a master, the first 300 tokens of each at the holder; and a function that composes their
    step, in which the last token of each text is computed.
    """
    master, holder = both = meet_all([Member(number, directory, mode) for number in range(2)])
    texts = [TEXT[:600], TEXT[300:900]]
    for each in both:
        expected = [whole_text(each, text, 1, 1000 * number) for number, text in enumerate(texts)]
    for number, text in enumerate(texts):
        master.poison(range(1000 * number, 1000 * number + 300))
        extents = {"extent_start": i64([-1, 1000 * number + 300]), "extent_length": i64([300, 299])}
        master.tell(make_open(number + 1, text, sampling=SAMPLING, **extents))

    def compose(number: int, named: Sequence[int] = (0, 1)) -> None:
        spans = span_columns([(row, (0, 300, 1, 0)) for row in range(len(named))])
        rows = [(1 + which, 599, 600, 1000 * which + 599) for which in named]
        part = serve(0, [(1 + which, 599, 600, [(0, 300, 1000 * which)]) for which in named])
        master.tell(make_step(number, *rows, **spans, **group(master, both, GroupKind.MASTERS, number)))
        holder.tell(no_rows(number, serve=part, **group(holder, both, GroupKind.MASTERS, number)))

    return master, holder, expected, compose


@pytest.mark.parametrize("before", [1, 4, 7])
def test_a_row_may_leave_a_step_with_peers_and_the_others_go_on(directory: Path, mode: str, before: int) -> None:
    master, holder, expected, compose = two_split_rows(directory, mode)
    compose(1)
    for _ in range(before):  # so many pieces at the master, then as many at the holder
        for each in (master, holder):
            each.events += each.runner.work(lambda: True)
    master.tell(interrupt(1))
    run_all([master, holder])
    left, done = master.answers()
    assert (list(left.sequence), list(left.parked), list(done.sequence), list(done.left)) == ([1], [0], [2], [1])
    assert agree(samples(done), expected[1], mode)
    holder.answers()
    compose(2, [0])
    run_all([master, holder])
    (again,) = master.answers()
    assert agree(samples(again), expected[0], mode)


def test_a_member_whose_rows_all_left_still_answers_for_others(directory: Path, mode: str) -> None:
    """Each is master of one sequence and holds keys of the other's; and each is still asked for the row that left."""
    members = meet_all([Member(number, directory, mode) for number in range(2)])
    texts = [TEXT[:600], TEXT[300:900]]
    for each in members:
        expected = [whole_text(each, text, 1, 1000 * number) for number, text in enumerate(texts)]
    for each in members:
        own, other = each.number, 1 - each.number
        extents = {"extent_start": i64([-1, 1000 * own + 300]), "extent_length": i64([300, 299])}
        each.tell(make_open(own + 1, texts[own], sampling=SAMPLING, **extents))
        part = serve(0, [(other + 1, 599, 600, [(0, 300, 1000 * other)])])
        columns = {**span_columns([(0, (0, 300, 1, 0))]), **group(each, members, GroupKind.MASTERS, 7)}
        each.tell(make_step(1, (own + 1, 599, 600, 1000 * own + 599), serve=part, **columns))
    for each in members * 2:
        each.events += each.runner.work(lambda: True)
    members[0].tell(interrupt(1))
    run_all(members)
    left, done = members[0].answers()
    assert (list(left.sequence), list(done.left)) == ([1], [1])
    assert agree(samples(members[1].answers()[0]), expected[1], mode)


def test_what_a_row_of_a_ring_leaves_behind_is_not_kept(directory: Path) -> None:
    """Its slots may be another's by then; the other row goes on."""
    members = meet_all([Member(number, directory, "torch") for number in range(2)])
    texts = [TEXT[:40], TEXT[40:80]]
    expected = whole_text(members[0], texts[1], 1, 0)
    for each in members:
        stripes = [(row, (1 - each.number, 40, 2, 0)) for row in range(2)]
        columns = {**span_columns(stripes), **group(each, members, GroupKind.RING, 9)}
        kept = [keep(row, LAYERS, 0, 40, 100 + 100 * row) for row in range(2)]
        both = Keep(*(first + second for first, second in zip(columns_of(kept[0]), columns_of(kept[1]), strict=True)))
        rows = [(1 + row, each.number, 40, 2000 + 100 * row) for row in range(2)]
        each.tell(*(make_open(1 + row, text, sampling=SAMPLING) for row, text in enumerate(texts)))
        each.tell(make_step(1, *rows, sample=[each.number] * 2, stride=i64([2, 2]), keep=both, **columns))
    for _ in range(2):
        members[0].events += members[0].runner.work(lambda: True)
    members[0].tell(interrupt(1))
    members[0].events += members[0].runner.work(lambda: True)
    members[0].poison(range(100, 140))
    run_all(members)
    left, done = members[0].answers()
    assert (list(left.sequence), list(done.left)) == ([1], [1])
    for layer in members[0].loaded.decoder.kv:
        assert layer[100:140].isnan().all()
        assert not layer[200:240].isnan().any()
    (other,) = members[1].answers()
    assert agree(list(zip(other.token, other.logprob, strict=True))[1:], expected, "torch")


def test_a_row_that_does_not_run_is_answered_for_nevertheless(directory: Path, mode: str) -> None:
    """The holder's step was composed before the sequence ended."""
    master, holder, expected, compose = two_split_rows(directory, mode)
    master.tell(Close(1))
    compose(1)
    run_all([master, holder])
    (done,) = master.answers()
    assert (list(done.dropped), list(done.sequence)) == ([1], [2])
    assert agree(samples(done), expected[1], mode)
    assert isinstance(holder.answers()[0], StepDone)


def test_a_queued_step_that_serves_is_taken_out_by_an_interrupt_of_all_alone(directory: Path) -> None:
    master, holder, expected, compose = two_split_rows(directory, "torch")
    compose(1)
    holder.tell(interrupt(99, up_to_step=1))
    (left,) = holder.answers()
    assert list(left.sequence) == []
    run_all([master, holder])
    assert agree(samples(master.answers()[0]), [each for text in expected for each in text], "torch")
    assert isinstance(holder.answers()[0], StepDone)
    compose(2)
    holder.tell(interrupt(up_to_step=2))
    left, done = holder.answers()
    assert (list(left.sequence), list(done.left), holder.runner.busy) == ([], [], False)


def test_a_step_whose_peer_is_forgotten_ends(directory: Path) -> None:
    master, holder, _, compose = two_split_rows(directory, "torch")
    compose(1)
    for _ in range(50):
        master.events += master.runner.work(lambda: None)
    assert master.runner.is_waiting
    master.tell(Forget(holder.address))
    run_all([master])
    met, done = master.answers()
    assert isinstance(met, Met)
    assert (list(done.left), list(done.sequence)) == ([1, 2], [])


def test_a_holder_that_answers_for_other_queries_is_found_out(directory: Path) -> None:
    """Both steps end, with nothing that counts."""
    master, holder, _, _ = two_split_rows(directory, "torch")
    spans = span_columns([(0, (0, 300, 1, 0))])
    both = [master, holder]
    master.tell(make_step(1, (1, 599, 600, 599), **spans, **group(master, both, GroupKind.MASTERS, 1)))
    part = serve(0, [(1, 598, 600, [(0, 300, 0)])])
    holder.tell(no_rows(1, serve=part, **group(holder, both, GroupKind.MASTERS, 1)))
    run_all(both)
    (served,), (done,) = holder.answers(), master.answers()
    assert (list(served.left), list(done.left), list(done.sequence)) == ([], [1], [])


RING: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "do not make up the tokens 0 to 4": ((0, 4, 3), span_columns([(0, (0, 2, 1, 0))])),
    "do not make up the tokens 0 to 6": ((0, 4, 2), span_columns([(0, (5, 6, 1, 0))])),
    "regions to keep that overlap": ((0, 4, 2), {"keep": keep(0, LAYERS, 0, 5, 0)}),
    "token 2 is computed, but the KV before it ends at 0": (
        (2, 6, 2),
        span_columns([(0, (3, 6, 2, 0))]),
    ),
    "stripes up to 11 are named, 10 tokens are known": ((0, 10, 2), span_columns([(0, (1, 11, 1, 0))])),
    "keep of a part of the step's layers": ((0, 4, 2), {"keep": keep(0, 1, 0, 2, 0)}),
    "token 9 is to be sampled, but 10 are known": (
        (0, 10, 2),
        {**span_columns([(0, (1, 10, 2, 0))]), "sample": i8([1])},
    ),
    "a stride of a span below 1": ((0, 4, 2), {"span_stride": i64([0])}),
}


@pytest.mark.parametrize("detail", RING)
def test_what_is_no_ring_is_refused(directory: Path, detail: str) -> None:
    members = meet_all([Member(number, directory, "torch") for number in range(2)])
    me, (row, changed) = members[0], RING[detail]
    me.tell(make_open(1, TEXT[:10]))
    columns = {**span_columns([(0, (1, 4, 2, 0))]), **group(me, members, GroupKind.RING, 1), **changed}
    sample = columns.pop("sample", [0])
    me.tell(make_step(1, (1, *row[:2], 2000), sample=sample, stride=i64([row[2]]), **columns))
    if me.runner.busy:
        me.events += me.runner.work(lambda: None)
    (refused,) = me.answers()
    assert detail in refused.detail


REFUSED: dict[str, dict[str, Any]] = {
    "spans that lie elsewhere are a ring's or masters'": {"group": GroupKind.LOCAL},
    "peers without the number of an exchange": {"exchange": 0},
    "spans of rows [0] of 1 at peers [1] of 1": {"span_holder": i32([1])},
    "columns of different lengths: spans": {"span_stop": i64([1, 2])},
    "columns of different lengths: peers": {"own_room": i64()},
    "an empty span": {"span_stop": i64([0])},
    "a stride of a row that is no stripe of a ring": {"stride": i64([2])},
    "keep of rows that are no stripes of a ring": {"keep": keep(0, LAYERS, 0, 4, 0)},
    "there is no transit room 9": {"own_room": i64([9])},
    "spans [range(0, 8)] before token 6": {"span_stop": i64([8])},
    "tokens 3 to 6 do not all lie here": {"span_stop": i64([3])},
    "tokens 0 to 6 do not all lie here": span_columns([]),
    "token 7 is computed, but the KV before it ends at 6": {"start": i64([7])},
}


@pytest.mark.parametrize("detail", REFUSED)
def test_what_cannot_be_is_refused(directory: Path, detail: str) -> None:
    """Tokens 0 to 4 of ten lie elsewhere; the row computes those from 6 on."""
    members = meet_all([Member(number, directory, "torch") for number in range(2)])
    me = members[0]
    me.tell(make_open(1, TEXT[:10], extent_start=i64([-1, 4]), extent_length=i64([4, 2])))
    columns = {**span_columns([(0, (0, 4, 1, 0))]), **group(me, members, GroupKind.MASTERS, 1), **REFUSED[detail]}
    me.tell(make_step(1, (1, 6, 10, 6), **columns))
    if me.runner.busy:
        me.events += me.runner.work(lambda: None)
    (refused,) = me.answers()
    assert detail in refused.detail


def test_a_queued_step_that_is_interrupted_lets_its_peers_end(directory: Path) -> None:
    """The holder computes a prompt; what it is to serve after that is taken back before it begins, twice in a row."""
    master, holder = meet_all([Member(number, directory, "deterministic") for number in range(2)])
    length = len(TEXT) - CHUNK
    for each in (master, holder):
        whole_text(each, TEXT, STEPS, 0)
    pieces = [(0, 512, 1), (512, length, 0)]
    spread(master, holder, pieces)
    holder.tell(make_open(5, TEXT[:200]), make_step(1, (5, 0, 200, 2000)))
    holder.events += holder.runner.work(lambda: True)
    for number in (1, 2):
        split_step(master, holder, number, (length, len(TEXT)), pieces)
    for _ in range(100):
        master.events += master.runner.work(lambda: None)
    assert master.runner.is_waiting
    holder.tell(interrupt(up_to_step=52))
    run_all([holder, master])
    left, *done = holder.answers()
    assert isinstance(left, Interrupted)
    assert sorted(each.step for each in done) == [1, 51, 52]
    assert [(each.step, list(each.sequence), list(each.left)) for each in master.answers()] == [
        (1, [], [1]),
        (2, [], [1]),
    ]


def test_a_step_that_is_refused_lets_its_peers_end(directory: Path) -> None:
    """The holder is to serve with a row of its own whose sequence has a parked row."""
    master, holder = meet_all([Member(number, directory, "deterministic") for number in range(2)])
    length = len(TEXT) - CHUNK
    for each in (master, holder):
        whole_text(each, TEXT, STEPS, 0)
    pieces = [(0, 512, 1), (512, length, 0)]
    spread(master, holder, pieces)
    holder.tell(make_open(5, TEXT[:200]), make_step(1, (5, 0, 200, 2000)))
    holder.events += holder.runner.work(lambda: True)
    holder.tell(interrupt(up_to_step=1))
    spans = span_columns([(0, (0, 512, 1, 0))])
    both = [master, holder]
    master.tell(make_step(1, (1, length, len(TEXT), length), **spans, **group(master, both, GroupKind.MASTERS, 71)))
    part = serve(0, [(1, length, len(TEXT), [(0, 512, 0)])])
    holder.tell(make_step(2, (5, 0, 10, 3000), serve=part, **group(holder, both, GroupKind.MASTERS, 71)))
    run_all([holder, master])
    assert [each.step for each in holder.answers() if isinstance(each, Unsupported)] == [2]
    assert [(each.step, list(each.left)) for each in master.answers()] == [(1, [1])]
