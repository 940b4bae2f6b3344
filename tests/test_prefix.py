import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin import prefix

ROOT = prefix.root("tenant", "digest")
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=70)


@given(TOKENS, st.integers(0, 70))
def test_a_chain_depends_on_its_own_tokens_alone(tokens: list[int], stop: int) -> None:
    stop = min(stop, len(tokens))
    assert prefix.chain_of(ROOT, tokens, stop) == prefix.chain_of(ROOT, tokens[:stop], stop)


@given(TOKENS.filter(bool), st.data())
def test_any_other_token_gives_another_chain(tokens: list[int], data: st.DataObject) -> None:
    changed = list(tokens)
    at = data.draw(st.integers(0, len(tokens) - 1))
    changed[at] = (changed[at] + 1) % 2**31
    assert prefix.chain_of(ROOT, tokens, len(tokens)) != prefix.chain_of(ROOT, changed, len(tokens))


def test_a_longer_chain_is_made_from_a_shorter_one() -> None:
    tokens = list(range(2 * prefix.BLOCK_TOKENS))
    first = prefix.chain_of(ROOT, tokens, prefix.BLOCK_TOKENS)
    assert prefix.extend(first, tokens[prefix.BLOCK_TOKENS :]) == prefix.chain_of(ROOT, tokens, len(tokens))


def test_every_part_of_the_root_counts_and_parts_do_not_run_together() -> None:
    roots = {
        prefix.root(*parts)
        for parts in [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"), ("", "", "")]
    }
    assert len(roots) == 5


def test_a_block_has_bounds() -> None:
    for tokens in ([], list(range(prefix.BLOCK_TOKENS + 1))):
        with pytest.raises(ValueError, match="a block of"):
            prefix.extend(ROOT, tokens)
    with pytest.raises(ValueError, match="the chain of 3 tokens of 2"):
        prefix.chain_of(ROOT, [1, 2], 3)


def test_chains_of_a_growing_text_are_those_of_the_whole() -> None:
    text: list[int] = []
    chains, start = prefix.Chains(), prefix.root("t", "w")
    for length in (0, 3, 16, 17, 40, 64, 65):
        text += range(len(text), length)
        for stop in (length, length // 2):
            assert chains.at(start, text, stop) == prefix.chain_of(start, text, stop)
    assert chains.at(prefix.root("u", "w"), text, 40) == prefix.chain_of(prefix.root("u", "w"), text, 40)
    with pytest.raises(ValueError, match="the chain of 66 tokens of 65"):
        chains.at(start, text, 66)


def test_a_text_begins_with_what_it_has_and_never_with_more() -> None:
    start, tokens = prefix.root("tenant", "weights"), list(range(40))
    chain = prefix.chain_of(start, tokens, 36)
    assert prefix.begins(start, tokens, 36, chain)
    assert not prefix.begins(start, [7, *tokens[1:]], 36, chain)
    assert not prefix.begins(start, tokens[:35], 36, chain)
