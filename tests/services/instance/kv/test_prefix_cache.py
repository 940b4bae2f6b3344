"""The tree of shared beginnings: what is found, pinned and evicted, and in which order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.instance.kv.prefix_cache import ChainOf, PrefixBlock, PrefixCache


def text(name: str) -> ChainOf:
    """A text of one letter per block: the chain of the first n is the first n letters."""
    return lambda count: name[:count].encode()


def make(*names: str) -> PrefixCache:
    """A tree in which these texts were computed one after the other, and are unused."""
    prefixes = PrefixCache()
    for name in names:
        prefixes.unpin(grow(prefixes, name))
    return prefixes


def grow(prefixes: PrefixCache, name: str) -> list[PrefixBlock]:
    """Use what is there of a text and add the rest."""
    held = prefixes.cached_blocks(text(name), len(name))
    block = prefixes.find(name[:held].encode()) if held else None
    path = prefixes.pin(block) if block else []
    for count in range(held + 1, len(name) + 1):
        path.append(prefixes.add(name[:count].encode(), path[-1] if path else None))
    return path


def evicted(prefixes: PrefixCache) -> list[str]:
    """The blocks by name, in the order in which they go."""
    gone = []
    while (block := prefixes.evict()) is not None:
        prefixes.check_integrity()
        gone.append(block.chain.decode())
    return gone


@pytest.mark.parametrize(("asked", "most", "held"), [("abc", 3, 3), ("abc", 2, 2), ("abx", 3, 2), ("x", 1, 0)])
def test_the_longest_beginning_that_is_here_is_found(asked: str, most: int, held: int) -> None:
    assert make("abcd").cached_blocks(text(asked), most) == held


def test_beginnings_are_there_once() -> None:
    assert len(make("abc", "abd", "ae")) == 5


def test_the_end_of_the_text_that_was_used_least_recently_goes_first() -> None:
    assert evicted(make("abc", "abd", "xy")) == ["abc", "abd", "ab", "a", "xy", "x"]


def test_a_use_saves_the_whole_beginning() -> None:
    prefixes = make("abc", "xy")
    prefixes.unpin(grow(prefixes, "ab"))
    assert evicted(prefixes) == ["abc", "xy", "x", "ab", "a"]


def test_what_is_in_use_stays_and_so_does_all_before_it() -> None:
    prefixes = make("abc", "xy")
    path = grow(prefixes, "ab")
    assert prefixes.unpinned == 3
    assert prefixes.pinned_blocks(text("abc"), 3) == 2
    assert evicted(prefixes) == ["abc", "xy", "x"]
    prefixes.unpin(path)
    assert evicted(prefixes) == ["ab", "a"]


def test_two_users_are_two_pins() -> None:
    prefixes = make("ab")
    one, two = grow(prefixes, "ab"), grow(prefixes, "ab")
    prefixes.unpin(one)
    assert evicted(prefixes) == []
    prefixes.unpin(two)
    assert evicted(prefixes) == ["ab", "a"]


def test_a_block_that_comes_again_is_another_owner() -> None:
    prefixes = make("ab")
    first = grow(prefixes, "ab")
    prefixes.unpin(first)
    evicted(prefixes)
    again = grow(prefixes, "ab")
    assert not set(again) & set(first)
    assert not {block.number for block in again} & {block.number for block in first}


def test_a_block_that_is_used_again_and_again_leaves_no_heap_of_old_entries() -> None:
    prefixes = make("ab", "cd")
    for _ in range(1000):
        prefixes.unpin(grow(prefixes, "ab"))
    assert len(prefixes._leaves) <= 100
    assert evicted(prefixes) == ["cd", "c", "ab", "a"]


class TreeMachine(RuleBasedStateMachine):
    """The model: which texts' blocks are there, their users, and when each was used last."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = PrefixCache()
        self.paths: list[list[PrefixBlock]] = []
        self.there: dict[str, int] = {}
        self.uses = 0

    @rule(name=st.text("ab", min_size=1, max_size=6))
    def use(self, name: str) -> None:
        expected = next((n for n in range(len(name), 0, -1) if name[:n] in self.there), 0)
        assert self.prefixes.cached_blocks(text(name), len(name)) == expected
        path = grow(self.prefixes, name)
        assert [block.chain.decode() for block in path] == [name[:n] for n in range(1, len(name) + 1)]
        for block in path:
            self.there.setdefault(block.chain.decode(), 0)
        self.paths.append(path)

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        path = self.paths.pop(data.draw(st.integers(0, len(self.paths) - 1)))
        self.uses += 1
        for block in path:
            self.there[block.chain.decode()] = self.uses
        self.prefixes.unpin(path)

    @rule()
    def evict(self) -> None:
        used = {block.chain.decode() for path in self.paths for block in path}
        loose = [n for n in self.there if n not in used and not any(o != n and o.startswith(n) for o in self.there)]
        block = self.prefixes.evict()
        if block is None:
            assert not loose
            return
        name = block.chain.decode()
        assert name in loose
        last = self.there.pop(name)
        assert all(self.there[other] >= last for other in loose if other != name), "another was not used for longer"

    @invariant()
    def counts(self) -> None:
        self.prefixes.check_integrity()
        used = {block.chain.decode() for path in self.paths for block in path}
        assert len(self.prefixes) == len(self.there)
        assert self.prefixes.unpinned == len(self.there) - len(used)


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=60, stateful_step_count=40)
