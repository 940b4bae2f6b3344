"""Planted bugs: each can be planted, is gone afterwards, and is caught by an invariant that it breaks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dunlin.kv.prefix_hash import chain_of, chain_root, has_prefix
from services.dispatcher.requests.token_rows import is_consistent
from services.instance.kv.residency import Residency, SlotUse
from simulator.campaign.violation import Violation
from tests.zoo.hunt import BUGS, Result, hunt, names, search
from tests.zoo.plant import Bug, Swap, planted, skip, swap
from tests.zoo.restore import restore, write

INVARIANTS = {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12"}
"""All of docs/campaigns.md."""


def test_there_is_a_bug_for_each_invariant_and_enough_of_them() -> None:
    assert len(BUGS) >= 24
    assert [bug.name for bug in BUGS if not bug.seed] == []
    assert len(set(names())) == len(BUGS)
    assert {bug.invariants[0] for bug in BUGS} == INVARIANTS


@pytest.mark.parametrize("bug", BUGS, ids=names())
def test_it_can_be_planted(bug: Bug) -> None:
    """What it names is there, and is a function."""
    with planted(bug):
        pass


def held() -> Residency:
    residency = Residency(1, SlotUse.OWNED)
    residency.add(0, (10, 5))
    return residency


def bug(*swaps: Swap) -> Bug:
    return Bug("b", "", ("I8",), swaps)


SHIFTED = swap(
    Residency.slots_of,
    lambda original, self, start, stop: [(first + 1, length) for first, length in original(self, start, stop)],
)


def test_it_is_there_and_gone_again_whatever_happens() -> None:
    with planted(bug(SHIFTED)):
        assert held().slots_of(0, 2) == [(11, 2)]
    with pytest.raises(ValueError, match="positions 0 to 9"), planted(bug(SHIFTED)):
        held().slots_of(0, 9)
    assert held().slots_of(0, 2) == [(10, 2)]


def test_a_bound_method_and_a_function_imported_by_name_have_it_too() -> None:
    span = held().slots_of
    with planted(bug(SHIFTED, skip(has_prefix, bool))):
        assert span(0, 2) == [(11, 2)]
        assert not has_prefix(chain_root("", ""), [1], 1, chain_of(chain_root("", ""), [1], 1))
    assert has_prefix(chain_root("", ""), [1], 1, chain_of(chain_root("", ""), [1], 1))


def spoken(word: str, times: int = 2, *, end: str = ".") -> str:
    return word * times + end


def test_arguments_by_name_and_by_default_reach_the_original() -> None:
    with planted(bug(swap(spoken, lambda original, *args, **kwargs: original(*args, **kwargs).upper()))):
        assert [spoken("a"), spoken("a", times=1), spoken("a", end="b")] == ["AA.", "A.", "AAB"]
    assert spoken("a") == "aa."


def test_only_the_calls_of_one_function_change() -> None:
    with planted(bug(skip(chain_of, bytes, called_by=has_prefix))):
        assert has_prefix(b"", [1], 1, b"")
        assert chain_of(chain_root("", ""), [1], 1) != b""


def test_two_bugs_of_one_function_are_undone_in_turn() -> None:
    with planted(bug(SHIFTED, SHIFTED)):
        assert held().slots_of(0, 2) == [(12, 2)]
    assert held().slots_of(0, 2) == [(10, 2)]


@pytest.mark.parametrize("target", [Residency, held().slots_of, Residency.stop])
def test_only_functions_can_be_swapped(target: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="is no function"):
        skip(target, lambda: None)


def test_what_breaks_nothing_is_not_caught() -> None:
    result = search(bug(skip(is_consistent, lambda: True)), most=1)
    assert not result.is_caught
    assert str(result).startswith("b: NOT CAUGHT after 1 seeds")


def test_what_was_not_caught_names_the_seed_of_the_violation_beside_it() -> None:
    result = Result(bug(), 3, 9, Violation("I1", 1.0, "twice"), violation_seed=8)
    assert str(result) == "b: NOT CAUGHT after 3 seeds; seed 8: I1 at 1.000000 s: twice"


def test_a_seed_is_noted_beside_its_bug_and_nowhere_else(tmp_path: Path) -> None:
    entry = '    Bug(\n        "{}",\n        "",\n        ("I1",),\n        (),\n{}    ),\n'
    file = tmp_path / "bugs_of_mine.py"
    file.write_text("BUGS = (\n" + entry.format("one", "        seed=7,\n") + entry.format("two", "") + ")\n")
    write("two", 12, tmp_path)
    write("one", 8, tmp_path)
    noted = entry.format("one", "        seed=8,\n") + entry.format("two", "        seed=12,\n")
    assert file.read_text() == "BUGS = (\n" + noted + ")\n"
    with pytest.raises(LookupError, match="has a bug 'three'"):
        write("three", 1, tmp_path)


def test_restoring_leaves_a_seed_that_catches_its_bug() -> None:
    said: list[str] = []
    assert restore(["leaked-slots"], 0, 1, said.append) == []
    (known,) = [bug.seed for bug in BUGS if bug.name == "leaked-slots"]
    assert said == [f"leaked-slots: {known}"]


@pytest.mark.parametrize("name", names())
def test_it_is_caught(name: str) -> None:
    """By its own seed or one of the next. `python -m tests.zoo` hunts all of them, and searches longer."""
    (result,) = hunt([name], None, print, most=4)
    assert result.is_caught, str(result)
