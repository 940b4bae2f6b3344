import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.kv import prefix_hash

ROOT = prefix_hash.chain_root("tenant", "digest")
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=70)


@given(TOKENS, st.integers(0, 70))
def test_a_chain_depends_on_its_own_tokens_alone(tokens: list[int], stop: int) -> None:
    stop = min(stop, len(tokens))
    assert prefix_hash.chain_of(ROOT, tokens, stop) == prefix_hash.chain_of(ROOT, tokens[:stop], stop)


@given(TOKENS.filter(bool), st.data())
def test_any_other_token_gives_another_chain(tokens: list[int], data: st.DataObject) -> None:
    changed = list(tokens)
    at = data.draw(st.integers(0, len(tokens) - 1))
    changed[at] = (changed[at] + 1) % 2**31
    assert prefix_hash.chain_of(ROOT, tokens, len(tokens)) != prefix_hash.chain_of(ROOT, changed, len(tokens))


def test_a_longer_chain_is_made_from_a_shorter_one() -> None:
    tokens = list(range(2 * prefix_hash.BLOCK_TOKENS))
    first = prefix_hash.chain_of(ROOT, tokens, prefix_hash.BLOCK_TOKENS)
    assert prefix_hash.extend_chain(first, tokens[prefix_hash.BLOCK_TOKENS :]) == prefix_hash.chain_of(
        ROOT, tokens, len(tokens)
    )


def test_every_part_of_the_root_counts_and_parts_do_not_run_together() -> None:
    roots = {
        prefix_hash.chain_root(*parts)
        for parts in [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"), ("", "", "")]
    }
    assert len(roots) == 5


def test_a_block_has_bounds() -> None:
    for tokens in ([], list(range(prefix_hash.BLOCK_TOKENS + 1))):
        with pytest.raises(ValueError, match="a block of"):
            prefix_hash.extend_chain(ROOT, tokens)
    with pytest.raises(ValueError, match="the chain of 3 tokens of 2"):
        prefix_hash.chain_of(ROOT, [1, 2], 3)


def test_chains_of_a_growing_text_are_those_of_the_whole() -> None:
    text: list[int] = []
    chains, start = prefix_hash.PrefixChain(), prefix_hash.chain_root("t", "w")
    for length in (0, 3, 16, 17, 40, 64, 65):
        text += range(len(text), length)
        for stop in (length, length // 2):
            assert chains.chain_at(start, text, stop) == prefix_hash.chain_of(start, text, stop)
    assert chains.chain_at(prefix_hash.chain_root("u", "w"), text, 40) == prefix_hash.chain_of(
        prefix_hash.chain_root("u", "w"), text, 40
    )
    with pytest.raises(ValueError, match="the chain of 66 tokens of 65"):
        chains.chain_at(start, text, 66)


def test_a_text_begins_with_what_it_has_and_never_with_more() -> None:
    start, tokens = prefix_hash.chain_root("tenant", "weights"), list(range(40))
    chain = prefix_hash.chain_of(start, tokens, 36)
    assert prefix_hash.has_prefix(start, tokens, 36, chain)
    assert not prefix_hash.has_prefix(start, [7, *tokens[1:]], 36, chain)
    assert not prefix_hash.has_prefix(start, tokens[:35], 36, chain)


@given(st.integers(1, 5), st.integers(0, 5))
def test_blocks_have_the_chains_of_their_ends(first: int, more: int) -> None:
    tokens, last = list(range(11 * prefix_hash.BLOCK_TOKENS)), first + more
    stops = [prefix_hash.BLOCK_TOKENS * count for count in range(first, last + 1)]
    expected = [prefix_hash.chain_of(ROOT, tokens, stop) for stop in stops]
    assert prefix_hash.PrefixChain().blocks(ROOT, tokens, first, last) == expected


def test_blocks_of_tokens_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="the chain of 32 tokens of 31"):
        prefix_hash.PrefixChain().blocks(ROOT, list(range(31)), 1, 2)
