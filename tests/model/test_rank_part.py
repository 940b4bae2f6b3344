"""What of a model each rank has."""

from dataclasses import replace
from pathlib import Path

import pytest

from dunlin.model.config import ModelConfig, load_config
from dunlin.model.rank_part import RankError, check_ranks, rank_part
from dunlin.model.weight_layout import layer_blocks
from tests.engine.build import make_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(make_checkpoint(tmp_path_factory.mktemp("model"), "qwen2"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3", "gemma2"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_parts_of_all_ranks_are_the_whole(tmp_path: Path, family: str, ranks: int) -> None:
    whole = load_config(make_checkpoint(tmp_path, family))
    parts = [rank_part(whole, rank, ranks) for rank in range(ranks)]
    for at, block in enumerate(layer_blocks(whole, 1)):
        cells: list[tuple[int, int]] = []
        for part in parts:
            own = layer_blocks(part.config, 1)[at]
            assert part.is_cut(own) == (own.shape != block.shape)
            if part.is_cut(own):
                assert part.whole_block(own) == block
                width = block.shape[1] if len(block.shape) > 1 else 1
                rows = [row for kept in part.rows(own) for row in kept]
                columns = range(width)[part.columns(own)]
                assert len(rows) == own.shape[0]
                cells += [(row, column) for row in rows for column in columns]
        assert not cells or len(cells) == len(set(cells)) == block.items()


def test_a_rank_has_queries_keys_and_values_of_its_heads(whole: ModelConfig) -> None:
    part = rank_part(whole, 1, 2)  # 6 heads and 2 for keys, 16 wide
    (block,) = [each for each in layer_blocks(part.config, 0) if each.name == "qkv"]
    assert part.rows(block) == [range(48, 96), range(112, 128), range(144, 160)]


@pytest.mark.parametrize(
    ("changed", "ranks", "said"),
    [
        ({}, 4, "6 attention heads do not divide into 4 ranks"),
        ({}, 3, "2 key-value heads do not divide into 3 ranks"),
        ({"intermediate": 161}, 2, "161 MLP columns do not divide into 2 ranks"),
    ],
)
def test_what_does_not_divide_is_refused(whole: ModelConfig, changed: dict[str, int], ranks: int, said: str) -> None:
    with pytest.raises(RankError, match=said):
        rank_part(replace(whole, **changed), 0, ranks)  # type: ignore[arg-type]


def test_experts_are_refused(tmp_path: Path) -> None:
    whole = load_config(make_checkpoint(tmp_path, "mixtral"))
    check_ranks(whole, 1)
    with pytest.raises(RankError, match="experts"):
        check_ranks(whole, 2)
