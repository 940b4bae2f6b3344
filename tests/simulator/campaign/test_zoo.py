"""Planted bugs: each can be planted, is gone afterwards, and is caught by an invariant that it breaks."""

from pathlib import Path

import pytest

from services.instance.slots import Holding, Use
from tests.zoo.hunt import BUGS, hunt, names, search
from tests.zoo.plant import Bug, Edit, Gone, planted
from tests.zoo.restore import restore, write

SLOTS = "services.instance.slots"
INVARIANTS = {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I11", "I12"}
"""All of docs/campaigns.md but I10, which needs batch jobs."""


def test_there_is_a_bug_for_each_invariant_and_enough_of_them() -> None:
    assert len(BUGS) >= 24
    assert [bug.name for bug in BUGS if not bug.seed] == []
    assert len(set(names())) == len(BUGS)
    assert {bug.invariants[0] for bug in BUGS} == INVARIANTS


@pytest.mark.parametrize("bug", BUGS, ids=names())
def test_it_can_be_planted(bug: Bug) -> None:
    """Its edits fit the source as it is now."""
    with planted(bug):
        pass


def held() -> Holding:
    holding = Holding(1, Use.OWNED)
    holding.append((10, 5))
    return holding


def bug(old: str, new: str, module: str = SLOTS) -> Bug:
    return Bug("b", "", ("I8",), (Edit(module, old, new),))


def test_it_is_there_and_gone_again_whatever_happens() -> None:
    off_by_one = bug("found.append((first + offset, taken))", "found.append((first + offset + 1, taken))")
    with planted(off_by_one):
        assert held().span(0, 2) == [(11, 2)]
    with pytest.raises(ValueError, match="positions 0 to 9"), planted(off_by_one):
        held().span(0, 9)
    assert held().span(0, 2) == [(10, 2)]


def test_a_property_can_have_a_bug() -> None:
    with planted(bug("return self.ends[-1] if self.ends else 0", "return 1")):
        assert held().slots == 1
    assert held().slots == 5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("no such line", "", "0 times"), ("self", "this", "times, not once"), ('"owned"', '"mine"', "no function")],
)
def test_an_edit_that_does_not_fit_is_told(old: str, new: str, said: str) -> None:
    with pytest.raises(Gone, match=said), planted(bug(old, new)):
        pass


def test_what_breaks_nothing_is_not_caught() -> None:
    result = search(bug('raise ValueError(f"{count} slots")', 'raise ValueError(f"not {count} slots")'), most=1)
    assert not result.is_caught
    assert str(result).startswith("b: NOT CAUGHT after 1 seeds")


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
    """By its own seed or one of the next. `dunlin sim --zoo` hunts all of them, and searches longer."""
    (result,) = hunt([name], None, print, most=4)
    assert result.is_caught, str(result)
