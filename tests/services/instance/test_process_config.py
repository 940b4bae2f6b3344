"""Settings of an engine that exclude each other."""

from typing import Any

import pytest

from services.instance.process_config import EngineConfig


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"ranks": 2, "deterministic": True}, "deterministic computes with one rank, not with 2"),
        ({"ranks": 9}, "ranks"),
        ({"dtype": "bf16", "deterministic": True}, "deterministic computes in fp32, not bf16"),
        ({"kv_dtype": "fp8", "deterministic": True}, "deterministic keeps KV in fp32, not fp8"),
        ({"device": "cuda", "deterministic": True}, "deterministic computes on the CPU, not on cuda"),
    ],
)
def test_what_excludes_each_other_is_refused(chosen: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EngineConfig(**chosen)


def test_several_ranks_may_compute_in_bf16() -> None:
    assert EngineConfig(ranks=2, dtype="bf16").ranks == 2
