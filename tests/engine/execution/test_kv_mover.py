"""Moves between the slab and the host tier: whole, checked, in order of urgency, or refused with the cause."""

from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from torch import Tensor

from dunlin.engine.decoder.loader import LoadedModel
from dunlin.engine.execution.kv_mover import HostMapping, KvMoveError, KvMover, check_extents
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.kv.region_identity import region_identity, signed_digest
from dunlin.messages.engine import (
    CancelTransfer,
    MapHost,
    Open,
    Step,
    Transfer,
    TransferDone,
)
from dunlin.messages.types import (
    HostRegion,
    Region,
    TransferKind,
    TransferStatus,
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


@pytest.mark.parametrize(("copied_bytes", "order"), [(1, ["step", 2, 1]), (1 << 30, [2, 1, "step"])])
def test_the_most_urgent_move_goes_first_and_steps_go_on_after_so_many_bytes(
    loaded: LoadedModel, tier: Path, copied_bytes: int, order: list[Any]
) -> None:
    runner = make_runner(loaded, limits=RunnerLimits(copied_bytes=copied_bytes))
    messages: list[Open | Step | Transfer | MapHost] = [map_host(tier), make_open()]
    messages += [
        make_move(i, TransferKind.SLAB_TO_HOST, 1, N, (0, N), priority=priority) for i, priority in ((1, 2), (2, 1))
    ]
    events = run(runner, *messages, make_step(1, (1, 0, N, 0)))
    assert [getattr(event, "ticket", "step") for event in events] == order


@pytest.mark.parametrize(("copy_share", "is_at_once"), [(0.0, False), (100.0, True)])
def test_beside_long_iterations_a_large_region_is_copied_at_once(
    loaded: LoadedModel, tier: Path, copy_share: float, is_at_once: bool
) -> None:
    runner = make_runner(loaded, clock=SteppingClock(), limits=RunnerLimits(copied_bytes=1, copy_share=copy_share))
    run(runner, map_host(tier), make_open(), make_step(1, (1, 0, N, 0)))
    messages = [make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N)), make_step(2, (1, N, N + 1, N))]
    events = run(runner, *messages)
    assert [getattr(event, "ticket", "step") for event in events] == ([1, "step"] if is_at_once else ["step", 1])


def make_mover(path: Path) -> tuple[KvMover, list[Tensor]]:
    """A mover over two layers of 16 slots, one kv head of 4 dimensions: 32 bytes a token and layer."""
    kv = [torch.arange(128, dtype=torch.float32).view(16, 2, 1, 4) + 1000 * layer for layer in range(2)]
    tier = HostMapping()
    path.write_bytes(bytes(1024))
    tier.map(MapHost(str(path), 1024, 1))
    return KvMover(kv, 16, tier, SteppingClock()), kv


def move_of(number: int, kind: TransferKind, checksum: int = 0, **overrides: Any) -> Transfer:
    """Three tokens in slots 5, 6 and 1, at byte 64 of the tier."""
    values = {"extent_start": i64([5, 1]), "extent_length": i64([2, 1]), "region": Region(0, 2, 0, 3), **overrides}
    return Transfer(ticket=number, kind=kind, sequence=1, host=HostRegion(1, 1, 64, 192, checksum), **values)


def finish(mover: KvMover) -> TransferDone:
    while (ended := mover.advance()) is None:
        pass
    return ended[1]


def test_a_region_lies_in_the_tier_layer_by_layer(tmp_path: Path) -> None:
    mover, kv = make_mover(tmp_path / "tier")
    mover.add(move_of(1, TransferKind.SLAB_TO_HOST))
    assert mover.advance() is None, "one layer at a time"
    assert mover.copied_bytes == 96
    done = finish(mover)
    wanted = b"".join(layer[[5, 6, 1]].numpy().tobytes() for layer in kv)
    content = (tmp_path / "tier").read_bytes()
    assert content[64:256] == wanted
    assert not any(content[:64] + content[256:])
    plain = region_identity(Region(0, 2, 0, 3), "float32", b"") + wanted
    assert (done.status, done.checksum) == (TransferStatus.OK, signed_digest(xxhash.xxh3_64_intdigest(plain)))
    assert (done.moved_bytes, mover.copied_bytes, len(mover)) == (192, 192, 0)


def test_times_of_a_move_are_its_whole_and_its_busy_seconds(tmp_path: Path) -> None:
    """The clock moves a second with each reading: two layers and the end are three turns of one second."""
    mover, _ = make_mover(tmp_path / "tier")
    mover.add(move_of(1, TransferKind.SLAB_TO_HOST))
    done = finish(mover)
    assert (done.busy_s, done.seconds) == (3.0, 7.0)


def test_what_comes_back_is_what_went(tmp_path: Path) -> None:
    mover, kv = make_mover(tmp_path / "tier")
    before = [layer.clone() for layer in kv]
    mover.add(move_of(1, TransferKind.SLAB_TO_HOST))
    saved = finish(mover)
    for layer in kv:
        layer[[5, 6, 1]] = 0.0
    mover.add(move_of(2, TransferKind.HOST_TO_SLAB, saved.checksum))
    assert finish(mover).status is TransferStatus.OK
    assert all(torch.equal(layer, kept) for layer, kept in zip(kv, before, strict=True))
    mover.add(move_of(3, TransferKind.HOST_TO_SLAB, saved.checksum + 1))
    assert finish(mover).status is TransferStatus.CORRUPT


def test_a_move_is_held_until_it_ends_or_is_cancelled(tmp_path: Path) -> None:
    mover, _ = make_mover(tmp_path / "tier")
    mover.add(move_of(1, TransferKind.SLAB_TO_HOST))
    assert (1 in mover, 2 in mover, len(mover)) == (True, False, 1)
    assert mover.cancel(2) is None
    ended = mover.cancel(1)
    assert ended is not None
    assert (ended[0].ticket, ended[1].status, ended[1].moved_bytes) == (1, TransferStatus.CANCELLED, 0)
    assert (1 in mover, len(mover)) == (False, 0)


@pytest.mark.parametrize(("starts", "lengths"), [([0], [0]), ([-1], [2]), ([15], [2]), ([0, 16], [1, 1])])
def test_an_extent_that_is_empty_or_outside_the_slab_is_refused(starts: list[int], lengths: list[int]) -> None:
    with pytest.raises(KvMoveError, match="lies outside the slab of 16"):
        check_extents(starts, lengths, 16)
    check_extents([0, 15], [16, 1], 16)


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (0, -4), (1020, 5), (1025, 0)])
def test_bytes_outside_the_mapped_tier_are_refused(tmp_path: Path, offset: int, length: int) -> None:
    (tmp_path / "tier").write_bytes(bytes(1024))
    tier = HostMapping()
    tier.map(MapHost(str(tmp_path / "tier"), 1024, 1))
    assert len(tier.host_view(1020, 4)) == 4
    with pytest.raises(KvMoveError, match="lie outside the host tier of 1024 bytes"):
        tier.host_view(offset, length)
