"""Two nodes with nothing but a cable between them: an instance is emptied across it, and every text is the same."""

import asyncio

import pytest

from benchmarks.harness.namespaces import NoNamespaces, namespace_link, two_nodes
from benchmarks.kv.migration import MigrationPlan, run
from dunlin.transport.one_sided.nixl_agent import is_installed

pytestmark = pytest.mark.cluster

PLAN = MigrationPlan(moves=6, instances=2, width=4, distinct_prompts=4, output_tokens=160)


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        with namespace_link():
            pass
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.parametrize(("transport", "between_nodes"), [("sockets", "sockets"), ("sockets", "off"), ("nixl", "off")])
def test_a_loaded_instance_is_drained_across_a_cable(transport: str, between_nodes: str) -> None:
    if transport == "nixl" and not is_installed():
        pytest.skip("NIXL (extra `nodes`) is not installed")
    with two_nodes(transport, between_nodes) as cluster:
        outcome = asyncio.run(run(PLAN, cluster))
        said = cluster.log("kvstore-0") + (cluster.data_dir / "kvstore-far.log").read_text()
        met = cluster.log("instance-0") + (cluster.data_dir / "instance-far.log").read_text()
    assert ("come by one-sided writes" in said) == (transport == "nixl")
    assert ("KV goes straight into the memory of engine/" in met) == (between_nodes == "sockets")
    assert outcome.failures == []
    assert outcome.figures["requests failed or with another text"] == 0
    moves, failed = outcome.figures["migrations"], outcome.figures["migrations failed"]
    assert isinstance(moves, int)
    assert moves >= PLAN.moves
    assert failed == 0
    assert outcome.figures["migrated tokens"]
