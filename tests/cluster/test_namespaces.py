"""Two nodes with nothing but a cable between them: an instance is emptied across it, and every text is the same."""

import asyncio

import pytest

from benchmarks.migration import Plan, run
from benchmarks.namespaces import NoNamespaces, cable, two_nodes
from dunlin.transport.nixl_agent import is_installed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PLAN = Plan(moves=6, instances=2, width=4, songs=4, output_tokens=160)


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        with cable():
            pass
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.parametrize("transport", ["sockets", "nixl"])
def test_a_loaded_instance_is_drained_across_a_cable(transport: str) -> None:
    if transport == "nixl" and not is_installed():
        pytest.skip("NIXL (extra `nodes`) is not installed")
    with two_nodes(transport) as cluster:
        outcome = asyncio.run(run(PLAN, cluster))
        said = cluster.log("kvstore-0") + (cluster.data_dir / "kvstore-far.log").read_text()
    assert ("come by one-sided writes" in said) == (transport == "nixl")
    assert outcome.broken == []
    assert outcome.figures["requests failed or with another text"] == 0
    moves, failed = outcome.figures["migrations"], outcome.figures["migrations failed"]
    assert isinstance(moves, int)
    assert moves >= PLAN.moves
    assert failed == 0
    assert outcome.figures["migrated tokens"]
