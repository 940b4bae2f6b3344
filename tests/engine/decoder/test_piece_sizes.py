"""The size of a piece follows what a token takes, within a bound and in few steps."""

import pytest

from dunlin.engine.decoder.piece_sizes import Linear, PieceSizes


class Machine:
    """A block takes `token_s` for each of its tokens."""

    def __init__(self, token_s: float) -> None:
        self.token_s = token_s
        self.sizes = PieceSizes(0.005, lambda: 0.0, least_rows=256)

    def run(self, pieces: int, tokens: int | None = None, stretch: Linear = Linear.FINISH) -> int:
        for _ in range(pieces):
            size = tokens or self.sizes.rows(stretch)
            self.sizes.learn(stretch, size, size * self.token_s)
        return self.sizes.rows(stretch)


@pytest.mark.parametrize(("token_us", "size"), [(1000, 256), (10, 256), (3, 1024), (0.1, 1 << 15), (0.001, 1 << 16)])
def test_a_piece_takes_no_longer_than_the_bound_if_it_can(token_us: float, size: int) -> None:
    machine = Machine(token_us * 1e-6)
    assert machine.run(50) == size
    assert machine.run(50) == size, "it stays"


def test_it_follows_a_machine_that_gets_slower_and_faster() -> None:
    machine = Machine(1e-6)
    assert machine.run(50) == 2048
    machine.token_s = 8e-6
    assert machine.run(50) == 512
    machine.token_s = 1e-6
    assert machine.run(50) == 2048


def test_the_two_stretches_have_sizes_of_their_own() -> None:
    machine = Machine(1e-6)
    machine.run(50)
    assert machine.sizes.rows(Linear.PROJECT) == 256


def test_one_slow_piece_does_not_halve_a_size_that_has_room() -> None:
    machine = Machine(1.5e-6)
    assert machine.run(50) == 2048
    machine.token_s = 4e-6
    assert machine.run(1) == 2048


def test_small_pieces_say_nothing() -> None:
    machine = Machine(1e-3)
    machine.run(5, tokens=255)
    machine.token_s = 1e-6
    assert machine.run(1) == 512


def test_a_block_that_lasts_too_long_is_cut_into_equal_times() -> None:
    sizes = PieceSizes(0.005, lambda: 0.0, least_rows=256, least_columns=64)
    assert sizes.share(Linear.FINISH, 256) == 0.0, "not measured yet: the least"
    sizes.learn(Linear.FINISH, 256, 0.020)
    assert sizes.share(Linear.FINISH, 256) == pytest.approx(0.25)
    assert sizes.share(Linear.FINISH, 128) == pytest.approx(0.5)
    assert sizes.share(Linear.FINISH, 32) == 1.0
    assert sizes.share(Linear.PROJECT, 256) == 0.0


def test_where_columns_may_not_be_cut_a_block_is_one_piece() -> None:
    sizes = PieceSizes(0.0, lambda: 0.0, least_rows=16)
    sizes.learn(Linear.FINISH, 16, 1.0)
    assert sizes.share(Linear.FINISH, 16) == 1.0
