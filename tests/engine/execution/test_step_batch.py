"""A step's rows and their answer, where the logits of one are not finite."""

from pathlib import Path

import pytest

from tests.engine.build import damage, load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.running import OTHER, generate, make_runner, run

DAMAGED = 77


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_row_without_a_number_ends_alone(tmp_path: Path, deterministic: bool) -> None:
    """Its neighbours get the very tokens that they get without it, in the same steps and in later ones."""
    directory = make_checkpoint(tmp_path, seed=2)
    good = generate(make_runner(load(directory, deterministic)), 1, OTHER, 3, 0)
    runner, n = make_runner(load(damage(directory, DAMAGED), deterministic)), len(OTHER)
    first, second, third = run(
        runner,
        make_open(1, [5, DAMAGED, 7]),
        make_open(2, OTHER),
        make_step(1, (1, 0, 2, 200), (2, 0, n, 100), sample=[0, 1]),
        make_step(2, (1, 2, 3, 202), (2, n, n + 1, 100 + n)),
        make_step(3, (1, 3, 4, 203), (2, n + 1, n + 2, 101 + n)),
    )
    assert [list(done.failed) for done in (first, second, third)] == [[], [1], []]
    assert list(third.dropped) == [1]
    assert [list(done.sequence) for done in (first, second, third)] == [[2], [2], [2]]
    assert [done.token[0] for done in (first, second, third)] == good
