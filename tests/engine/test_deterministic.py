"""Bits depend on a sequence's tokens alone: not on batch, chunk borders, extents or neighbours."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dunlin.engine.decoder.loading.loader import LoadedModel
from tests.engine.build import SHAPES, Sequences, load, make_checkpoint

LENGTH = 150
TOKENS = torch.randint(0, 512, (LENGTH,), generator=torch.Generator().manual_seed(5)).tolist()
OTHERS = torch.randint(0, 512, (4, 400), generator=torch.Generator().manual_seed(6)).tolist()
TARGET = 9


@pytest.fixture(scope="module", params=sorted(SHAPES))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    family, overrides = SHAPES[request.param]
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), family, seed=4, **overrides), deterministic=True)


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> list[Tensor]:
    """Logits after every token, computed token by token with nobody else there."""
    sequences = Sequences(loaded.decoder, {TARGET: list(range(LENGTH))})
    return [sequences.compute([(TARGET, [token], at)])[0] for at, token in enumerate(TOKENS)]


@dataclass(frozen=True)
class Company:
    """How one sequence is computed: where its chunks end, who else is in the steps, where its KV lies."""

    cuts: list[int]
    neighbours: list[tuple[int, int, int]]
    place: int
    slots: list[int]


straight = list(range(1000, 1000 + LENGTH))
companies = st.builds(
    Company,
    cuts=st.lists(st.integers(1, LENGTH - 1), unique=True, max_size=6).map(lambda places: [*sorted(places), LENGTH]),
    neighbours=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 90), st.integers(0, 300)),
        max_size=4,
        unique_by=lambda each: each[0],
    ),
    place=st.integers(0, 4),
    slots=st.one_of(st.just(straight), st.permutations(straight)),
)


@settings(max_examples=25)
@given(company=companies)
def test_a_sequence_has_the_same_bits_in_any_company(
    loaded: LoadedModel, alone: list[Tensor], company: Company
) -> None:
    table = {TARGET: company.slots, **{i: list(range(2000 + 400 * i, 2400 + 400 * i)) for i in range(4)}}
    sequences = Sequences(loaded.decoder, table)
    start = 0
    for stop in company.cuts:
        parts = [(i, OTHERS[i][before : before + length], before) for i, length, before in company.neighbours]
        parts.insert(min(company.place, len(parts)), (TARGET, TOKENS[start:stop], start))
        logits = sequences.compute(parts)[[part[0] for part in parts].index(TARGET)]
        assert torch.equal(logits, alone[stop - 1])
        start = stop


def test_the_fast_way_has_other_bits_so_the_property_is_not_vacuous(tmp_path: Path) -> None:
    decoder = load(make_checkpoint(tmp_path, seed=4)).decoder
    one = Sequences(decoder, {0: list(range(LENGTH))})
    singly = [one.compute([(0, [token], at)])[0] for at, token in enumerate(TOKENS)][-1]
    whole = Sequences(decoder, {0: list(range(500, 500 + LENGTH))}).compute([(0, TOKENS, 0)])[0]
    assert torch.allclose(singly, whole, atol=1e-3)
    assert not torch.equal(singly, whole)
