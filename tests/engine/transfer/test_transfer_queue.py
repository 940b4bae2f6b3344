"""Transfers: whole, checked, in order of urgency, in turns beside steps, or refused with the cause."""

from pathlib import Path
from typing import Any

import pytest
import xxhash

from dunlin.effects import Address
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.transfer_queue import EndedTransfer, TransferLimits
from dunlin.kv.region_identity import region_identity, signed_digest
from dunlin.messages.engine import (
    CancelTransfer,
    Interrupt,
    MapHost,
    Open,
    Step,
    Transfer,
    TransferDone,
)
from dunlin.messages.types import (
    HostRegion,
    Payload,
    Priority,
    Region,
    TransferKind,
    TransferStatus,
    Verdict,
    i64,
)
from tests.engine.build import SteppingClock, load, make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.running import (
    KV_BYTES_PER_TOKEN,
    N,
    generate,
    make_move,
    make_runner,
    map_host,
    run,
    save,
)
from tests.engine.transfer.engines import Engine, host_transfer, peer_transfer, slots_of


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), seed=2), deterministic=True)


@pytest.fixture(scope="module")
def text(loaded: LoadedModel) -> list[int]:
    """What the prompt goes on with."""
    return generate(make_runner(loaded), 1, PROMPT, 12, 0)


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    path = tmp_path / "tier"
    path.write_bytes(bytes(1 << 20))
    return path


def test_a_region_goes_to_the_tier_and_comes_back_elsewhere(loaded: LoadedModel, tier: Path, text: list[int]) -> None:
    runner = make_runner(loaded)
    saved = save(runner, tier)
    back = make_move(2, TransferKind.HOST_TO_SLAB, 2, N, (900, 3), (800, N - 3), checksum=saved.checksum)
    opened = make_open(2, [*PROMPT, text[0]], prompt_tokens=N)
    # The step is queued at once and waits for the move.
    restored, done = run(runner, opened, make_step(9, (2, N, N + 1, 40), after=i64([2])), back)
    assert (restored.status, restored.checksum) == (TransferStatus.OK, saved.checksum)
    assert (done.step, list(done.token), done.tokens_computed) == (9, [text[1]], 1)


def test_another_engine_reads_what_the_first_wrote(
    tmp_path: Path, loaded: LoadedModel, tier: Path, text: list[int]
) -> None:
    saved = save(make_runner(loaded), tier)
    second = load(make_checkpoint(tmp_path, seed=2), deterministic=True)
    runner = make_runner(second)
    back = make_move(2, TransferKind.HOST_TO_SLAB, 2, N, (0, N), checksum=saved.checksum)
    opened = make_open(2, [*PROMPT, text[0]], prompt_tokens=N)
    _, done = run(runner, map_host(tier), opened, back, make_step(9, (2, N, N + 1, N), after=i64([2])))
    assert list(done.token) == [text[1]]


def test_one_flipped_byte_is_noticed_and_its_rows_do_not_run(loaded: LoadedModel, tier: Path, text: list[int]) -> None:
    runner = make_runner(loaded)
    saved = save(runner, tier)
    content = bytearray(tier.read_bytes())
    content[4096 + 777] ^= 1
    tier.write_bytes(content)
    back = make_move(2, TransferKind.HOST_TO_SLAB, 2, N, (900, N), checksum=saved.checksum)
    opened = make_open(2, [*PROMPT, text[0]], prompt_tokens=N)
    corrupt, dropped = run(runner, opened, back, make_step(9, (2, N, N + 1, 40), after=i64([2])))
    assert corrupt.status is TransferStatus.CORRUPT
    assert (list(dropped.dropped), dropped.tokens_computed) == ([2], 0)
    (again,) = run(runner, make_step(10, (2, 0, N + 1, 40)))
    assert list(again.token) == [text[1]], "recomputed, the text is the same"


@pytest.mark.parametrize(
    "other",
    [{"chain": b"other tokens"}, {"region": Region(0, 3, 1, N + 1)}, {"region": Region(0, 3, 0, N), "chain": b"\0"}],
)
def test_another_regions_bytes_are_not_taken_for_its_own(
    loaded: LoadedModel, tier: Path, other: dict[str, Any]
) -> None:
    runner = make_runner(loaded)
    saved = save(runner, tier)
    runner.receive(make_open(2, PROMPT * 2))
    if other.get("region", Region(0, 3, 0, N)).start:
        run(runner, make_step(2, (2, 0, 1, 500)))
    back = make_move(2, TransferKind.HOST_TO_SLAB, 2, N, (900, N), checksum=saved.checksum, **other)
    (done,) = run(runner, back)
    assert done.status is TransferStatus.CORRUPT


def test_a_cancelled_move_answers_and_its_rows_do_not_run(loaded: LoadedModel, tier: Path) -> None:
    runner = make_runner(loaded)
    back = make_move(2, TransferKind.HOST_TO_SLAB, 2, N, (900, N))
    opened = make_open(2, [*PROMPT, 1], prompt_tokens=N)
    cancelled, dropped = run(
        runner, opened, back, make_step(9, (2, N, N + 1, 40), after=i64([2])), CancelTransfer(2), CancelTransfer(77)
    )
    assert (cancelled.ticket, cancelled.status) == (2, TransferStatus.CANCELLED)
    assert list(dropped.dropped) == [2]


BAD_MOVES = {
    "no host tier is mapped": make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N)),
    "names no host region": make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N), host=None),
    "layers 2 to 9 are not held": make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N), region=Region(2, 9, 0, N)),
    "extent of 10 slots from 999999": make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (999_999, N)),
    "slots for 4 tokens are named, the region has 10": make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, 4)),
    "its room has 8": make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N), host=HostRegion(1, 1, 0, 8)),
}


@pytest.mark.parametrize("detail", sorted(BAD_MOVES))
def test_a_move_that_cannot_be_done_fails_with_the_cause(loaded: LoadedModel, detail: str) -> None:
    (done,) = run(make_runner(loaded), BAD_MOVES[detail])
    assert (done.ticket, done.status) == (1, TransferStatus.FAILED)
    assert detail in done.detail


def test_room_outside_the_tier_is_refused(loaded: LoadedModel, tier: Path) -> None:
    outside = HostRegion(1, 1, (1 << 20) - 8, N * KV_BYTES_PER_TOKEN)
    moved = make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N), host=outside)
    (done,) = run(make_runner(loaded), map_host(tier), moved)
    assert done.status is TransferStatus.FAILED
    assert "lie outside the host tier of 1048576 bytes" in done.detail


@pytest.mark.parametrize(("copied_bytes", "order"), [(1, [2, "step", 1]), (1 << 30, [2, 1, "step"])])
def test_the_most_urgent_move_goes_first_and_steps_go_on_after_so_many_bytes(
    loaded: LoadedModel, tier: Path, copied_bytes: int, order: list[Any]
) -> None:
    runner = make_runner(
        loaded, limits=RunnerLimits(transfers=TransferLimits(chunk_bytes=1024, turn_bytes=copied_bytes))
    )
    messages: list[Open | Step | Transfer | MapHost] = [map_host(tier), make_open()]
    messages += [
        make_move(i, TransferKind.SLAB_TO_HOST, 1, N, (0, N), priority=priority) for i, priority in ((1, 2), (2, 1))
    ]
    events = run(runner, *messages, make_step(1, (1, 0, N, 0)))
    assert [getattr(event, "ticket", "step") for event in events] == order


def test_what_a_step_writes_is_sent_behind_it(loaded: LoadedModel, tier: Path) -> None:
    runner = make_runner(loaded)
    pushed = make_move(4, TransferKind.SLAB_TO_HOST, 1, N, (20, N), step=1)
    events = run(runner, map_host(tier), make_open(1), make_step(1, (1, 0, N, 20)), pushed)
    (done,) = [event for event in events if isinstance(event, TransferDone)]
    assert (done.status, len(events)) == (TransferStatus.OK, 2)
    kv = b"".join(layer[20 : 20 + N].numpy().tobytes() for layer in loaded.decoder.kv)
    assert tier.read_bytes()[4096 : 4096 + len(kv)] == kv


def test_a_row_that_leaves_takes_what_was_to_be_sent_along(loaded: LoadedModel, tier: Path) -> None:
    runner = make_runner(loaded)
    pushed = make_move(4, TransferKind.SLAB_TO_HOST, 1, N, (20, N), step=1)
    for message in (map_host(tier), make_open(1), make_step(1, (1, 0, N, 20)), pushed):
        assert runner.receive(message) == []
    assert runner.work(lambda: True) == [], "it pauses at its first safepoint"
    runner.receive(Interrupt(Verdict.DISCARD, ticket=7))
    failed, interrupted, left = run(runner)
    assert (failed.ticket, failed.status, failed.detail) == (4, TransferStatus.FAILED, "the row left step 1")
    assert (interrupted.ticket, list(interrupted.sequence), list(left.left)) == (7, [1], [1])


@pytest.mark.parametrize(("copy_share", "is_at_once"), [(0.0, False), (100.0, True)])
def test_beside_long_iterations_a_large_region_is_copied_at_once(
    loaded: LoadedModel, tier: Path, copy_share: float, is_at_once: bool
) -> None:
    limits = RunnerLimits(transfers=TransferLimits(chunk_bytes=1024, turn_bytes=1, turn_share=copy_share))
    runner = make_runner(loaded, clock=SteppingClock(), limits=limits)
    run(runner, map_host(tier), make_open(), make_step(1, (1, 0, N, 0)))
    messages = [make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N)), make_step(2, (1, N, N + 1, N))]
    events = run(runner, *messages)
    assert [getattr(event, "ticket", "step") for event in events] == ([1, "step"] if is_at_once else ["step", 1])


def only(ended: list[EndedTransfer]) -> TransferDone:
    (one,) = ended
    return one.done


def digest(content: bytes) -> int:
    return signed_digest(xxhash.xxh3_64_intdigest(region_identity(Region(0, 2, 0, 3), "float32", b"") + content))


def test_a_region_lies_in_the_tier_layer_by_layer(tmp_path: Path) -> None:
    engine = Engine(chunk_bytes=96)
    engine.map_tier(tmp_path / "tier")
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST))
    assert engine.queue.work_idle() == [], "one chunk at a time"
    assert engine.queue.copied_bytes == 96
    done = only(engine.finish())
    wanted = slots_of(engine.kv, [5, 6, 1])
    content = (tmp_path / "tier").read_bytes()
    assert content[64:256] == wanted
    assert not any(content[:64] + content[256:])
    assert (done.status, done.checksum) == (TransferStatus.OK, digest(wanted))
    assert (done.moved_bytes, engine.queue.copied_bytes, len(engine.queue)) == (192, 192, 0)


def test_times_of_a_transfer_are_its_whole_and_its_busy_seconds(tmp_path: Path) -> None:
    """The clock moves a second with each reading: two chunks of one second."""
    engine = Engine(chunk_bytes=96)
    engine.map_tier(tmp_path / "tier")
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST))
    done = only(engine.finish())
    assert (done.busy_s, done.seconds) == (2.0, 5.0)


def test_what_comes_back_is_what_went(tmp_path: Path) -> None:
    engine = Engine()
    engine.map_tier(tmp_path / "tier")
    before = slots_of(engine.kv, range(16))
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST))
    saved = only(engine.finish())
    for layer in engine.kv:
        layer[[5, 6, 1]] = 0.0
    engine.queue.add(host_transfer(2, TransferKind.HOST_TO_SLAB, saved.checksum))
    assert only(engine.finish()).status is TransferStatus.OK
    assert slots_of(engine.kv, range(16)) == before
    engine.queue.add(host_transfer(3, TransferKind.HOST_TO_SLAB, saved.checksum + 1))
    assert only(engine.finish()).status is TransferStatus.CORRUPT


def test_a_transfer_is_held_until_it_ends_or_is_cancelled(tmp_path: Path) -> None:
    engine = Engine(chunk_bytes=50)
    engine.map_tier(tmp_path / "tier")
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST))
    assert (1 in engine.queue, 2 in engine.queue, len(engine.queue)) == (True, False, 1)
    assert engine.queue.cancel(2) is None
    engine.queue.work_idle()
    ended = engine.queue.cancel(1)
    assert ended is not None
    assert (ended.transfer.ticket, ended.done.status, ended.done.moved_bytes) == (1, TransferStatus.CANCELLED, 50)
    assert (1 in engine.queue, len(engine.queue), engine.queue.has_work) == (False, 0, False)
    assert engine.queue.cancel(1) is None, "one answer and no more"
    assert (tmp_path / "tier").read_bytes()[64 + 50 :] == bytes(1024 - 64 - 50), "nothing is written after it"


def test_a_ticket_under_way_another_layout_and_one_too_many_are_refused() -> None:
    engine = Engine(waiting=2)
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST))
    with pytest.raises(TransferError, match="transfer 1 is under way"):
        engine.queue.add(host_transfer(1, TransferKind.HOST_TO_SLAB))
    with pytest.raises(TransferError, match="the layout is 0, the transfer was ordered for 3"):
        engine.queue.add(host_transfer(2, TransferKind.SLAB_TO_HOST, layout=3))
    with pytest.raises(TransferError, match="weights are loaded by Remap"):
        engine.queue.add(host_transfer(2, TransferKind.SLAB_TO_HOST, payload=Payload.WEIGHTS))
    engine.queue.add(host_transfer(2, TransferKind.SLAB_TO_HOST))
    with pytest.raises(TransferError, match="2 transfers are queued"):
        engine.queue.add(host_transfer(3, TransferKind.SLAB_TO_HOST))
    assert sorted(ended.transfer.ticket for ended in engine.finish()) == [1, 2]


def test_an_activation_overtakes_everything_after_one_chunk(tmp_path: Path) -> None:
    engine = Engine(chunk_bytes=32)
    engine.map_tier(tmp_path / "tier", 1 << 16)
    for ticket, priority in enumerate((Priority.PARAMETERS, Priority.CHECKPOINT, Priority.KV), 1):
        engine.queue.add(host_transfer(ticket, TransferKind.SLAB_TO_HOST, priority=priority))
    engine.queue.work_idle()
    activation = {"payload": Payload.ACTIVATION, "room": 2, "length_bytes": 48, "priority": Priority.ACTIVATION}
    engine.queue.add(host_transfer(9, TransferKind.SLAB_TO_HOST, **activation))
    ended = [*engine.queue.work_idle(), *engine.queue.work_idle()]
    assert [one.transfer.ticket for one in ended] == [9]
    assert [one.transfer.ticket for one in engine.finish()] == [3, 2, 1]


def test_transfers_of_one_priority_go_in_order_of_age(tmp_path: Path) -> None:
    engine = Engine(chunk_bytes=32)
    engine.map_tier(tmp_path / "tier")
    for ticket in (7, 3, 5):
        engine.queue.add(host_transfer(ticket, TransferKind.SLAB_TO_HOST))
    assert [one.transfer.ticket for one in engine.finish()] == [7, 3, 5]


def test_beside_steps_each_transfer_keeps_to_its_own_bound(tmp_path: Path) -> None:
    """Ticket 1 may copy 40 bytes a turn; what is left of the turn's 100 goes to ticket 2."""
    engine = Engine(chunk_bytes=32, turn_bytes=100, turn_share=0.0)
    engine.map_tier(tmp_path / "tier")
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST, step_bytes=40))
    engine.queue.add(host_transfer(2, TransferKind.SLAB_TO_HOST))
    assert engine.queue.work_in_step(1.0) == []
    assert engine.queue.copied_bytes == 40 + 64
    first, second = engine.queue.cancel(1), engine.queue.cancel(2)
    assert first is not None
    assert second is not None
    assert (first.done.moved_bytes, second.done.moved_bytes) == (40, 64)


def test_layers_are_copied_as_the_step_writes_them(tmp_path: Path) -> None:
    engine = Engine()
    engine.map_tier(tmp_path / "tier")
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST, step=8), is_written=False)
    assert not engine.queue.has_work
    engine.queue.layers_written(7, None)
    assert not engine.queue.has_work, "another step's layers"
    engine.queue.layers_written(8, 1)
    assert engine.finish() == []
    assert engine.queue.copied_bytes == 96
    engine.kv[1][[5, 6, 1]] = 7.0
    engine.queue.layers_written(8, None)
    done = only(engine.finish())
    assert (done.status, done.moved_bytes) == (TransferStatus.OK, 192)
    assert (tmp_path / "tier").read_bytes()[64:256] == slots_of(engine.kv, [5, 6, 1])


@pytest.mark.parametrize("stop", [0, 1, 2, 9])
def test_rows_that_leave_their_step_take_their_transfers_along(tmp_path: Path, stop: int) -> None:
    """Also where the layers of the region were written already: the step's tokens do not count."""
    engine = Engine(chunk_bytes=96)
    engine.map_tier(tmp_path / "tier")
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST, step=8), is_written=False)
    engine.queue.layers_written(8, stop)
    engine.queue.work_idle()
    assert engine.queue.step_left(8, [2]) == []
    assert engine.queue.step_left(7, None) == []
    done = only(engine.queue.step_left(8, [1]))
    assert (done.status, done.detail) == (TransferStatus.FAILED, "the row left step 8")
    assert (len(engine.queue), engine.queue.has_work) == (0, False)


def test_a_step_that_has_ended_has_no_rows_that_leave(tmp_path: Path) -> None:
    engine = Engine()
    engine.map_tier(tmp_path / "tier")
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST, step=8), is_written=False)
    engine.queue.layers_written(8, None)
    assert engine.queue.step_left(8, [1]) == []
    assert only(engine.finish()).status is TransferStatus.OK


def test_a_smaller_slab_fails_the_transfers_whose_slots_are_gone(tmp_path: Path) -> None:
    engine = Engine()
    engine.map_tier(tmp_path / "tier")
    high: dict[str, Any] = {"extent_start": i64([13]), "extent_length": i64([3])}
    engine.queue.add(host_transfer(1, TransferKind.SLAB_TO_HOST))
    engine.queue.add(host_transfer(2, TransferKind.SLAB_TO_HOST, **high))
    engine.slab.change_layout(1, [15, 16])
    (gone,) = engine.queue.layout_changed()
    assert (gone.transfer.ticket, gone.done.status) == (2, TransferStatus.FAILED)
    assert only(engine.finish()).status is TransferStatus.OK


def test_only_transfers_into_the_memory_of_a_peer_that_is_gone_fail() -> None:
    engine, other = Engine("a"), Engine("b")
    engine.meet(other)
    engine.queue.add(peer_transfer(1, other.address))
    engine.queue.add(peer_transfer(2, other.address, kind=TransferKind.PEER_TO_SLAB))
    engine.queue.add(peer_transfer(3, Address("engine", "c")))
    done = only(engine.queue.forget_peer(other.address))
    assert (done.ticket, done.status) == (1, TransferStatus.FAILED)
    assert len(engine.queue) == 2
