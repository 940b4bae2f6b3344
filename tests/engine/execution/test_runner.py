"""The engine's conversation, without its process: a real decoder, commands in, events out."""

from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.messages.engine import (
    Close,
    Meet,
    Remap,
    Resume,
    StepDone,
    Unsupported,
)
from dunlin.messages.types import (
    FinishReason,
    GroupKind,
    Keep,
    RemapPhase,
    SamplingParams,
    TransferKind,
    TransferStatus,
    f32,
    i8,
    i32,
    i64,
)
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.running import (
    OTHER,
    N,
    generate,
    make_move,
    make_runner,
    map_host,
    run,
    save,
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), seed=2), deterministic=True)


@pytest.fixture(scope="module")
def text(loaded: LoadedModel) -> list[int]:
    """What the prompt goes on with."""
    return generate(make_runner(loaded), 1, PROMPT, 12, 0)


@pytest.fixture(scope="module")
def other_text(loaded: LoadedModel) -> list[int]:
    return generate(make_runner(loaded), 1, OTHER, 12, 0)


# -- steps -------------------------------------------------------------------------------------------------------


def test_one_step_is_answered_whole(loaded: LoadedModel, text: list[int]) -> None:
    (done,) = run(make_runner(loaded), make_open(), make_step(5, (1, 0, N, 0)))
    assert done == StepDone(
        step=5,
        sequence=i64([1]),
        token=i32([text[0]]),
        logprob=done.logprob,
        finish=done.finish,
        prefill_rows=1,
        tokens_computed=N,
        compute_s=1.0,
        idle_s=1.0,
    )
    assert (list(done.logprob), list(done.finish)) == ([0.0], [FinishReason.RUNNING])


def test_a_prompt_in_chunks_beside_a_decoding_sequence(
    loaded: LoadedModel, text: list[int], other_text: list[int]
) -> None:
    """Prefill and decode rows share steps; each text is what it is alone."""
    n = len(OTHER)
    events = run(
        make_runner(loaded),
        make_open(1, PROMPT),
        make_open(2, OTHER),
        make_step(1, (2, 0, n, 100)),
        make_step(2, (1, 0, 4, 0), (2, n, n + 1, 100 + n), sample=[0, 1]),
        make_step(3, (2, n + 1, n + 2, 200), (1, 4, 9, 4), sample=[1, 0]),
        make_step(4, (1, 9, N, 50), (2, n + 2, n + 3, 201), sample=[1, 1]),
    )
    assert [(list(e.sequence), e.prefill_rows, e.decode_rows, e.tokens_computed) for e in events] == [
        ([2], 1, 0, n),
        ([2], 1, 1, 5),
        ([2], 1, 1, 6),
        ([1, 2], 1, 1, 2),
    ]
    tokens = {(s, e.step): t for e in events for s, t in zip(e.sequence, e.token, strict=True)}
    assert [tokens[2, step] for step in (1, 2, 3, 4)] == other_text[:4]
    assert tokens[1, 4] == text[0]


def test_a_stop_id_ends_a_sequence_and_drops_its_queued_rows(loaded: LoadedModel, text: list[int]) -> None:
    runner = make_runner(loaded)
    stop = text[1]
    ends = text.index(stop)
    steps = [make_step(i, (1, *((0, N, 0) if i == 0 else (N + i - 1, N + i, N + i - 1)))) for i in range(ends + 3)]
    events = run(runner, make_open(stop_ids=[stop]), *steps)
    assert [list(event.finish) for event in events[: ends + 1]] == [[FinishReason.RUNNING]] * ends + [
        [FinishReason.STOP]
    ]
    for event in events[ends + 1 :]:
        assert (list(event.token), list(event.dropped), event.tokens_computed) == ([], [1], 0)


def test_a_closed_sequence_is_dropped_and_the_others_go_on(loaded: LoadedModel, other_text: list[int]) -> None:
    runner = make_runner(loaded)
    (done,) = run(
        runner,
        make_open(1),
        make_open(2, OTHER),
        make_step(1, (1, 0, N, 0), (2, 0, len(OTHER), 30)),
        Close(1),
        Close(99),
    )
    assert (list(done.dropped), list(done.sequence), list(done.token)) == ([1], [2], other_text[:1])
    assert repr(runner) == "[sequences: 1 | steps: 0 | transfers: 0]"


def test_tokens_generated_elsewhere_count(loaded: LoadedModel, text: list[int]) -> None:
    """After a failover the prompt and what was generated are computed anew, and the text goes on."""
    opened = make_open(1, [*PROMPT, *text[:4]], prompt_tokens=N, max_tokens=6)
    events = run(make_runner(loaded), opened, make_step(1, (1, 0, N + 4, 0)), make_step(2, (1, N + 4, N + 5, N + 4)))
    assert [event.token[0] for event in events] == text[4:6]
    assert [event.finish[0] for event in events] == [FinishReason.RUNNING, FinishReason.LENGTH]


def test_sampled_text_does_not_depend_on_company_or_restarts(loaded: LoadedModel) -> None:
    hot = SamplingParams(temperature=1.3, seed=11, top_p=0.95)
    alone = generate(make_runner(loaded), 1, PROMPT, 8, 0, sampling=hot)
    resumed = make_open(1, [*PROMPT, *alone[:5]], prompt_tokens=N, sampling=hot)
    steps = [make_step(1, (2, 0, 8, 600), (1, 0, N + 5, 300)), make_step(2, (1, N + 5, N + 6, 400), (2, 8, 9, 700))]
    events = run(make_runner(loaded), resumed, make_open(2, OTHER, sampling=hot), *steps)
    assert [dict(zip(e.sequence, e.token, strict=True))[1] for e in events] == alone[5:7]
    assert generate(make_runner(loaded), 1, PROMPT, 8, 0, sampling=SamplingParams(1.3, seed=12)) != alone


def test_logprobs_come_in_columns(loaded: LoadedModel, text: list[int]) -> None:
    events = run(
        make_runner(loaded),
        make_open(1, sampling=SamplingParams(0.0, logprobs=2)),
        make_open(2, OTHER),
        make_step(1, (2, 0, len(OTHER), 100), (1, 0, N, 0)),
    )
    (done,) = events
    assert list(done.top_count) == [0, 2]
    assert done.top_token[0] == text[0]
    assert done.top_logprob[0] == done.logprob[1] > done.top_logprob[1]
    assert done.logprob[0] == 0.0


BAD_STEPS = {
    "columns of": make_step(1, (1, 0, N, 0), sample=[]),
    "a sequence is named twice": make_step(1, (1, 0, N, 0), (1, 0, N, 50)),
    "computes tokens 5 to 5": make_step(1, (1, 5, 5, 0), extent_length=i64([1])),
    "writes 10 tokens into 3 slots": make_step(1, (1, 0, N, 0), extent_length=i64([3])),
    "writes 10 tokens into 9 slots": make_step(1, (1, 0, N, 0), extent_length=i64([N - 1])),
    "an extent of 10 slots from 999999": make_step(1, (1, 0, N, 999_999)),
    "an extent of 10 slots from -1": make_step(1, (1, 0, N, -1)),
    "an extent of row 3 among 1 rows": make_step(1, (1, 0, N, 0), extent_row=i32([3])),
    "tokens up to 11 are named, 10 are known": make_step(1, (1, 0, N + 1, 0)),
    "token 4 is to be sampled, but 10 are known": make_step(1, (1, 0, 4, 0)),
    "the KV before it ends at 0": make_step(1, (1, 3, N, 0)),
    "group RING without peers": make_step(1, (1, 0, N, 0), group=GroupKind.RING),
    "keep of rows that are no stripes of a ring": make_step(1, (1, 0, N, 0), keep=Keep()),
    "a stride of a row that is no stripe of a ring": make_step(1, (1, 0, N, 0), stride=i64([2])),
}


@pytest.mark.parametrize("detail", sorted(BAD_STEPS))
def test_a_step_that_cannot_be_run_is_refused_and_changes_nothing(
    loaded: LoadedModel, text: list[int], detail: str
) -> None:
    runner = make_runner(loaded)
    (refused,) = run(runner, make_open(), BAD_STEPS[detail])
    assert (refused.what, refused.step) == ("Step", 1)
    assert detail in refused.detail
    (done,) = run(runner, make_step(2, (1, 0, N, 0)))
    assert list(done.token) == text[:1]


def test_the_last_slots_are_as_good_as_any(loaded: LoadedModel, tier: Path, text: list[int]) -> None:
    runner, last = make_runner(loaded), loaded.slots - N
    (done,) = run(runner, make_open(), make_step(1, (1, 0, N, last)))
    assert list(done.token) == text[:1]
    (moved,) = run(runner, map_host(tier), make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (last, N)))
    assert moved.status is TransferStatus.OK
    (refused,) = run(runner, make_open(2), make_step(2, (2, 0, N, last + 1)))
    assert isinstance(refused, Unsupported)


def test_the_queue_of_steps_is_bounded(loaded: LoadedModel) -> None:
    runner = make_runner(loaded, limits=RunnerLimits(steps=2))
    runner.receive(make_open())
    answers = [runner.receive(make_step(i, (9, 0, 1, 0))) for i in range(3)]
    assert answers == [[], [], [Unsupported("Step", "2 steps are queued", step=2)]]


BAD_OPENS = {
    "is open already": make_open(1),
    "0 tokens": make_open(2, []),
    "5000 tokens, the model takes 1 to 4096": make_open(2, [1] * 5000),
    "a token outside the vocabulary of 512": make_open(2, [1, 512]),
    "a token outside": make_open(2, [-1]),
}


@pytest.mark.parametrize("detail", sorted(BAD_OPENS))
def test_a_sequence_that_cannot_be_is_refused(loaded: LoadedModel, detail: str) -> None:
    runner = make_runner(loaded)
    runner.receive(make_open(1))
    (refused,) = runner.receive(BAD_OPENS[detail])
    assert refused.what == "Open"
    assert detail in refused.detail


def test_a_sequence_goes_on_in_another_runner_with_the_kv_that_lies_in_the_slab(
    loaded: LoadedModel, text: list[int]
) -> None:
    first = run(make_runner(loaded), make_open(), make_step(1, (1, 0, 4, 100), sample=[0]), make_step(2, (1, 4, N, 50)))
    known = [*PROMPT, first[1].token[0]]
    extents = {"extent_start": i64([100, 50]), "extent_length": i64([4, N - 4])}
    (done,) = run(make_runner(loaded), make_open(7, known, prompt_tokens=N, **extents), make_step(9, (7, N, N + 1, 60)))
    assert done.token[0] == text[1]
    assert done.tokens_computed == 1


@pytest.mark.parametrize(
    ("start", "length", "detail"),
    [
        ([0, 8], [4], "extent columns of different lengths"),
        ([-2], [4], "an extent of 4 slots from -2 in a slab of"),
        ([10**9], [4], "an extent of 4 slots from 1000000000 in a slab of"),
        ([0], [0], "an extent of 0 slots from 0 in a slab of"),
        ([0, 20], [N, 1], f"{N + 1} slots for {N} tokens"),
    ],
)
def test_slots_that_cannot_hold_the_first_tokens_are_refused(
    loaded: LoadedModel, start: list[int], length: list[int], detail: str
) -> None:
    (refused,) = run(make_runner(loaded), make_open(extent_start=i64(start), extent_length=i64(length)))
    assert isinstance(refused, Unsupported)
    assert refused.what == "Open"
    assert refused.detail.startswith(detail)


def test_too_many_sequences_are_refused(loaded: LoadedModel) -> None:
    runner = make_runner(loaded, limits=RunnerLimits(sequences=1))
    assert runner.receive(make_open(1)) == []
    assert runner.receive(make_open(2)) == [Unsupported("Open", "more than 1 sequences")]


def test_the_last_position_ends_a_sequence(loaded: LoadedModel) -> None:
    tokens = [5] * 4095
    (done,) = run(make_runner(loaded), make_open(1, tokens, max_tokens=100), make_step(1, (1, 0, 4095, 0)))
    assert list(done.finish) == [FinishReason.LENGTH]


@pytest.mark.parametrize(
    "message",
    [
        Resume(3),
        Remap(1, RemapPhase.PREPARE, i32([0])),
        StepDone(3, i64(), i32(), f32(), i8()),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_it_lacks_it_says(loaded: LoadedModel, message: Any) -> None:
    (answer,) = make_runner(loaded).receive(message)
    assert isinstance(answer, Unsupported)
    assert answer.what == type(message).__name__


# -- moves -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    path = tmp_path / "tier"
    path.write_bytes(bytes(1 << 20))
    return path


def test_a_region_for_a_sequence_that_is_not_open_fails(loaded: LoadedModel, tier: Path) -> None:
    runner = make_runner(loaded)
    saved = save(runner, tier)
    (done,) = run(runner, make_move(2, TransferKind.HOST_TO_SLAB, 5, N, (900, N), checksum=saved.checksum))
    assert (done.status, done.detail) == (TransferStatus.FAILED, "sequence 5 is not open")


def test_a_transfer_to_a_peer_that_was_not_met_fails(loaded: LoadedModel) -> None:
    peer = Address("instance", "b")
    runner = make_runner(loaded)
    (met,) = runner.receive(Meet(peer, b"no metadata"))
    assert (met.peer, "cannot be read" in met.detail) == (peer, True)
    (done,) = run(runner, make_move(4, TransferKind.SLAB_TO_PEER, 1, N, (0, N), peer=peer))
    assert (done.ticket, done.status, "was not met" in done.detail) == (4, TransferStatus.FAILED, True)


def test_a_transfer_for_another_layout_is_refused(loaded: LoadedModel) -> None:
    moved = make_move(4, TransferKind.SLAB_TO_HOST, 1, N, (0, N), layout=2)
    (refused,) = make_runner(loaded).receive(moved)
    assert (refused.what, refused.ticket, "ordered for 2" in refused.detail) == ("Transfer", 4, True)
